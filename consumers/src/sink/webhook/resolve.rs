//! DNS behind the address guard: every address of every answer is judged before a connection uses it.

use fanout_runtime::guard::{Guard, Refused};
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use tokio::sync::Semaphore;

/// Lookups of one sink at a time. A lookup occupies a thread and can't be cancelled: without a bound a dead name
/// server would take the threads of all subscriptions.
const LOOKUPS: usize = 2;

/// Resolver of one sink.
#[derive(Clone)]
pub(super) struct Resolver {
    guard: Arc<Guard>,
    lookups: Arc<Semaphore>,
}

impl Resolver {
    pub(super) fn new(guard: Arc<Guard>) -> Self {
        Self {
            guard,
            lookups: Arc::new(Semaphore::new(LOOKUPS)),
        }
    }

    /// Addresses of `host`, all of them admitted.
    pub(super) async fn lookup(&self, host: String) -> Result<Vec<SocketAddr>, LookupError> {
        let permit = Arc::clone(&self.lookups)
            .acquire_owned()
            .await
            .map_err(|_| LookupError::Failed)?;
        let lookup = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            (host.as_str(), 0).to_socket_addrs().map(Vec::from_iter)
        });
        let addresses = lookup
            .await
            .map_err(|_| LookupError::Failed)?
            .map_err(|_| LookupError::Failed)?;
        judge(&self.guard, addresses)
    }
}

/// One refused address refuses the whole answer: who can mix them can also choose which one is used.
fn judge(guard: &Guard, addresses: Vec<SocketAddr>) -> Result<Vec<SocketAddr>, LookupError> {
    for address in &addresses {
        guard.check_ip(address.ip())?;
    }
    if addresses.is_empty() {
        return Err(LookupError::Failed);
    }
    Ok(addresses)
}

impl Resolve for Resolver {
    fn resolve(&self, name: Name) -> Resolving {
        let resolver = self.clone();
        Box::pin(async move {
            let addresses = resolver.lookup(name.as_str().to_owned()).await?;
            Ok(Box::new(addresses.into_iter()) as Addrs)
        })
    }
}

/// Why a name can't be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum LookupError {
    #[error("name can't be resolved")]
    Failed,
    #[error(transparent)]
    Refused(#[from] Refused),
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses(texts: &[&str]) -> Vec<SocketAddr> {
        texts
            .iter()
            .map(|text| SocketAddr::new(text.parse().unwrap(), 0))
            .collect()
    }

    #[test]
    fn an_answer_with_one_refused_address_is_refused_whole() {
        let guard = Guard::new(&[], &[]);
        assert!(judge(&guard, addresses(&["8.8.8.8", "2606:4700::1"])).is_ok());
        for mixed in [
            ["8.8.8.8", "127.0.0.1"],
            ["10.0.0.1", "8.8.8.8"],
            ["8.8.8.8", "::ffff:169.254.169.254"],
        ] {
            assert!(
                matches!(
                    judge(&guard, addresses(&mixed)),
                    Err(LookupError::Refused(_))
                ),
                "{mixed:?}"
            );
        }
        assert_eq!(judge(&guard, Vec::new()), Err(LookupError::Failed));
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_name_of_the_machine_itself_is_refused_after_the_lookup() {
        let resolver = Resolver::new(Arc::new(Guard::new(&[], &[])));
        let refused = resolver.lookup("localhost".to_owned()).await.unwrap_err();
        assert_eq!(refused, LookupError::Refused(Refused::Always));
    }
}
