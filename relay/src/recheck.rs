//! Checks again, beside the publishing, what was checked before it: somebody may change the database meanwhile.

use crate::checks;
use crate::source::{Failure, Source};
use crate::stats::Stats;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

/// Time between two checks, up to a quarter longer. A dozen reads of the catalogue each.
const INTERVAL: Duration = Duration::from_secs(10);

/// Runs until `stop`. What makes publishing wrong goes to `found`, which ends it. A login that is refused is only
/// reported: the sessions that stand go on.
pub async fn run(
    source: Source,
    stats: Arc<Stats>,
    found: mpsc::Sender<Failure>,
    stop: CancellationToken,
) {
    loop {
        let pause = INTERVAL.mul_f64(1.0 + rand::random::<f64>() / 4.0);
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = stop.cancelled() => return,
        }
        let checked = async { (source.log_in().await, checks::run(&source).await) };
        let (login, checked) = tokio::select! {
            both = checked => both,
            () = stop.cancelled() => return,
        };
        match login {
            Err(failure) if failure.class.needs_human() => stats.source(Err(failure)),
            Ok(()) if stats.status().source_error.is_some() => stats.source(Ok(())),
            // That the server does not answer is for those to tell who need an answer.
            Ok(()) | Err(_) => {}
        }
        if let Err(failure) = checked
            && failure.class.needs_human()
        {
            // The engine may be ending by itself.
            found.send(failure).await.ok();
            return;
        }
    }
}
