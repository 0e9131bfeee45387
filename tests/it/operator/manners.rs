//! How the kinds behave under the tools of others: kubectl, deployment tools, and CRDs of another version than the operator.

mod health;
mod kubectl;
mod older_crds;

use super::cluster::Cluster;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tools_see_what_is_the_case_and_their_changes_are_kept() {
    let cluster = Cluster::start().await;
    let tools = health::Tools::new(&cluster).await;
    tools.see_objects_that_no_operator_saw().await;
    let operator = cluster.operator("only").await;
    tokio::join!(
        tools.see_every_state(),
        kubectl::shows_and_changes(&cluster)
    );
    operator.stop().await;
    tools.see_changes_that_no_operator_saw().await;
}
