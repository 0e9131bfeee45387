//! Turns SIGTERM and SIGINT into a cancellation token.

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// Token that is cancelled by the first SIGTERM or SIGINT. Must be called inside a tokio runtime; fails when
/// the signal handlers can't be installed.
pub fn on_signal() -> std::io::Result<CancellationToken> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let token = CancellationToken::new();
    let cancelled = token.clone();
    tokio::spawn(async move {
        let name = tokio::select! {
            _ = terminate.recv() => "SIGTERM",
            _ = interrupt.recv() => "SIGINT",
        };
        tracing::info!(signal = name, "stopping");
        cancelled.cancel();
    });
    Ok(token)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;
    use std::time::Duration;

    #[tokio::test]
    async fn sigterm_and_sigint_cancel_the_token() {
        for name in ["-TERM", "-INT"] {
            let token = on_signal().unwrap();
            assert!(!token.is_cancelled());
            let pid = std::process::id().to_string();
            assert!(
                Command::new("kill")
                    .args([name, &pid])
                    .status()
                    .unwrap()
                    .success()
            );
            tokio::time::timeout(Duration::from_secs(10), token.cancelled())
                .await
                .unwrap();
        }
    }
}
