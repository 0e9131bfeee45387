//! Whatever is wrong is said on the object within half a minute, with the field and the next step; it recovers by itself
//! when the cause is gone, and what is beside it is delivered throughout. Everything is real but the node.

mod board;
mod gate;
mod kafka;
mod objects;
mod scene;
mod source;
mod subscriptions;

use scene::Scene;

/// All cases run side by side on one API server, one operator, one PostgreSQL and one Kafka.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bad_input_is_explained_and_mended_while_others_are_served() {
    let scene = Scene::start().await;
    subscriptions::refused_by_the_api_server(&scene).await;
    tokio::join!(
        source::all(&scene),
        kafka::all(&scene),
        subscriptions::all(&scene),
        objects::all(&scene),
    );
    scene.finish().await;
}
