//! Webhook sink: one HTTP POST per event.

mod classify;
mod encode;
mod resolve;
mod sign;

use crate::event::Event;
use crate::verdict::Verdict;
use classify::{Answer, Nothing, classify};
use encode::{Encoded, delivery_id, encode};
use fanout_contract::consumer::WebhookConfig;
use fanout_contract::envelope::Attributes;
use fanout_runtime::guard::{Guard, Refused};
use reqwest::header::RETRY_AFTER;
use reqwest::{Client, Url, redirect, retry};
use resolve::{LookupError, Resolver};
use secrecy::SecretString;
use sign::{SecretError, Signer};
use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// Bytes of an answer that are read so that its connection can be used again; after more it is closed.
const MAX_ANSWER: usize = 64 << 10;
/// Idle connections are closed after this long; below what common servers and balancers allow.
const IDLE: Duration = Duration::from_secs(30);

/// Why a webhook can't be used at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Unusable {
    /// The URL is refused.
    #[error(transparent)]
    Address(#[from] Refused),
    /// A signing secret is no secret.
    #[error(transparent)]
    Secret(#[from] SecretError),
    /// The HTTP client can't start.
    #[error("TLS roots can't be loaded")]
    Client,
}

/// A subscription's endpoint with its connections.
pub(crate) struct Webhook {
    url: Url,
    signer: Signer,
    client: Client,
    resolver: Resolver,
    guard: Arc<Guard>,
    namespace: String,
    subscription: String,
    timeout: Duration,
}

impl Webhook {
    /// Checks `config` and prepares connections to it; `secrets` are the contents of its signing secret files.
    pub(crate) fn new(
        config: &WebhookConfig,
        secrets: &[SecretString],
        guard: Arc<Guard>,
        namespace: &str,
        subscription: &str,
    ) -> Result<Self, Unusable> {
        let url = guard.check_url(&config.url)?;
        let signer = Signer::new(secrets)?;
        let resolver = Resolver::new(Arc::clone(&guard));
        let timeout = Duration::from_secs(config.timeout_seconds.max(1).into());
        let client = Client::builder()
            // Neither may send an event, or what signs it, to an address that was not judged.
            .redirect(redirect::Policy::none())
            .no_proxy()
            .dns_resolver(resolver.clone())
            // Attempts are counted here and nowhere else.
            .retry(retry::never())
            .timeout(timeout)
            .pool_idle_timeout(IDLE)
            .tcp_nodelay(true)
            .user_agent(concat!("fanout/", env!("CARGO_PKG_VERSION")))
            .build()
            .map_err(|_| Unusable::Client)?;
        Ok(Self {
            url,
            signer,
            client,
            resolver,
            guard,
            namespace: namespace.to_owned(),
            subscription: subscription.to_owned(),
            timeout,
        })
    }

    /// Would the address guard admit the endpoint now? Asks DNS; what can't be resolved is not refused.
    pub(crate) async fn is_admitted(&self) -> bool {
        if self.guard.check_url(self.url.as_str()).is_err() {
            return false;
        }
        let Some(host) = self.url.domain() else {
            return true;
        };
        let lookup = self.resolver.lookup(host.to_owned());
        !matches!(
            tokio::time::timeout(self.timeout, lookup).await,
            Ok(Err(LookupError::Refused(_)))
        )
    }

    /// Makes one attempt. `final_statuses` are those that refuse an event for good.
    pub(crate) async fn deliver(
        &self,
        event: &Event,
        attributes: &Attributes,
        final_statuses: &[u16],
    ) -> Verdict {
        let now = SystemTime::now();
        let timestamp = now
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap_or_default()
            .as_secs();
        let id = delivery_id(&attributes.id, &self.namespace, &self.subscription);
        match encode(event, attributes, &id, &self.signer, timestamp) {
            Ok(request) => {
                let answer = self.post(request).await;
                classify(&answer, final_statuses, SystemTime::now())
            }
            Err(failure) => Verdict::Reject(failure),
        }
    }

    async fn post(&self, Encoded { headers, body }: Encoded) -> Answer {
        let request = self
            .client
            .post(self.url.clone())
            .headers(headers)
            .body(body);
        let mut response = match request.send().await {
            Ok(response) => response,
            Err(error) => return Answer::Nothing(nothing(&error)),
        };
        let answer = Answer::Status {
            status: response.status().as_u16(),
            retry_after: response
                .headers()
                .get(RETRY_AFTER)
                .and_then(|value| value.to_str().ok())
                .map(str::to_owned),
        };
        // The status decides. The body is read, up to a bound, only to keep the connection.
        let mut read = 0;
        while let Ok(Some(chunk)) = response.chunk().await {
            read += chunk.len();
            if read > MAX_ANSWER {
                break;
            }
        }
        answer
    }
}

/// Class of an attempt that brought no status.
fn nothing(error: &reqwest::Error) -> Nothing {
    let mut cause: Option<&(dyn Error + 'static)> = Some(error);
    while let Some(error) = cause {
        match error.downcast_ref::<LookupError>() {
            Some(LookupError::Refused(_)) => return Nothing::Refused,
            Some(LookupError::Failed) => return Nothing::Dns,
            None if is_tls(error) => return Nothing::Tls,
            None => cause = error.source(),
        }
    }
    if error.is_timeout() {
        Nothing::Timeout
    } else if error.is_connect() {
        Nothing::Connect
    } else {
        Nothing::Broken
    }
}

/// Is it the handshake's error? I/O errors carry it, and do not name it as their source.
fn is_tls(error: &(dyn Error + 'static)) -> bool {
    let carried = error
        .downcast_ref::<std::io::Error>()
        .and_then(std::io::Error::get_ref);
    error.is::<rustls::Error>()
        || carried.is_some_and(<dyn Error + Send + Sync>::is::<rustls::Error>)
}

#[cfg(test)]
mod tests;
