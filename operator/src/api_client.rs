//! The two clients of the API server: the election's, whose renewals are noted, and that of everything else, whose changes
//! need the Lease.
//!
//! Neither waits long: kube waits for an answer for ever, and its own retries go on for minutes.

use crate::leadership::Leadership;
use fanout_runtime::clock;
use futures::future::BoxFuture;
use http::{Method, Request, Response};
use kube::client::retry::RetryPolicy;
use kube::client::{Body, ClientBuilder};
use kube::{Client, Config};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tower::buffer::BufferLayer;
use tower::layer::layer_fn;
use tower::retry::RetryLayer;
use tower::{BoxError, Service};

/// Longest wait for the answer to anything but a watch, retries included.
const ANSWER: Duration = Duration::from_secs(15);
/// Longest wait of the election for an answer: less than a leader has left when it could not renew once.
const ELECTION: Duration = Duration::from_secs(4);
/// Requests that wait to be sent.
const QUEUE: usize = 1024;

/// A change was asked for, but this process does not hold the Lease (any more).
#[derive(Debug, thiserror::Error)]
#[error("this process does not lead (any more): the change was not sent")]
struct NotLeading;

/// The client of the election.
///
/// # Errors
/// `config` can't be used.
pub(crate) fn election(mut config: Config, leadership: Arc<Leadership>) -> kube::Result<Client> {
    config.default_retry = false;
    Ok(ClientBuilder::try_from(config)?
        .with_layer(&layer_fn(move |inner| Noted {
            inner,
            leadership: Arc::clone(&leadership),
        }))
        .with_layer(&layer_fn(|inner| Impatient {
            inner,
            limit: ELECTION,
        }))
        .build())
}

/// The client of everything else.
///
/// # Errors
/// `config` can't be used.
pub(crate) fn work(mut config: Config, leadership: Arc<Leadership>) -> kube::Result<Client> {
    config.default_retry = false;
    // A busy API server says when to come back; what lasts longer is up to the reconcile loop.
    let retry = RetryPolicy::new(Duration::from_millis(200), Duration::from_secs(2), 4, true)
        .unwrap_or_default();
    Ok(ClientBuilder::try_from(config)?
        // The fence is the last thing before the wire: also what is sent again passes it.
        .with_layer(&layer_fn(move |inner| Fenced {
            inner,
            leadership: Arc::clone(&leadership),
        }))
        .with_layer(&BufferLayer::new(QUEUE))
        .with_layer(&RetryLayer::new(retry))
        .with_layer(&layer_fn(|inner| Impatient {
            inner,
            limit: ANSWER,
        }))
        .build())
}

fn changes(request: &Request<Body>) -> bool {
    !matches!(*request.method(), Method::GET | Method::HEAD)
}

/// Tells the leadership of each Lease that was written.
struct Noted<S> {
    inner: S,
    leadership: Arc<Leadership>,
}

impl<S, B> Service<Request<Body>> for Noted<S>
where
    S: Service<Request<Body>, Response = Response<B>>,
    S::Future: Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<Response<B>, S::Error>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let write = changes(&request);
        // Others count from when they see the Lease written, which may be long before the answer is here.
        let sent = clock::now();
        let leadership = Arc::clone(&self.leadership);
        let answer = self.inner.call(request);
        Box::pin(async move {
            let response = answer.await?;
            if write && response.status().is_success() {
                leadership.renewed(sent);
            }
            Ok(response)
        })
    }
}

/// Sends changes only while this process leads.
struct Fenced<S> {
    inner: S,
    leadership: Arc<Leadership>,
}

impl<S, B> Service<Request<Body>> for Fenced<S>
where
    S: Service<Request<Body>, Response = Response<B>, Error = BoxError>,
    S::Future: Send + 'static,
    B: Send + 'static,
{
    type Response = S::Response;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Response<B>, BoxError>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        if changes(&request) && !self.leadership.may_change() {
            return Box::pin(std::future::ready(Err(NotLeading.into())));
        }
        Box::pin(self.inner.call(request))
    }
}

/// Gives up what is not answered in time; a watch's answer is its events, for which kube waits.
struct Impatient<S> {
    inner: S,
    limit: Duration,
}

impl<S, B> Service<Request<Body>> for Impatient<S>
where
    S: Service<Request<Body>, Response = Response<B>, Error = BoxError>,
    S::Future: Send + 'static,
{
    type Response = S::Response;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Response<B>, BoxError>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let query = request.uri().query().unwrap_or_default();
        let watches = query.contains("watch=true");
        let limit = self.limit;
        let answer = self.inner.call(request);
        if watches {
            return Box::pin(answer);
        }
        Box::pin(async move {
            tokio::time::timeout(limit, answer)
                .await
                .unwrap_or_else(|elapsed| Err(elapsed.into()))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;
    use tower::{ServiceExt as _, service_fn};

    /// Sends one request of each kind, and returns what arrived.
    async fn arrived(leadership: &Arc<Leadership>) -> Vec<Method> {
        let seen = Mutex::new(Vec::new());
        let mut fenced = Fenced {
            inner: service_fn(|request: Request<Body>| {
                seen.lock().unwrap().push(request.method().clone());
                std::future::ready(Ok::<_, BoxError>(Response::new(())))
            }),
            leadership: Arc::clone(leadership),
        };
        for method in [Method::GET, Method::PATCH, Method::POST, Method::DELETE] {
            let request = Request::builder()
                .method(method.clone())
                .body(Body::empty())
                .unwrap();
            let answer = fenced.ready().await.unwrap().call(request).await;
            let refused = answer.is_err_and(|error| error.is::<NotLeading>());
            let sent = seen.lock().unwrap().last() == Some(&method);
            assert_ne!(refused, sent, "{method}");
        }
        seen.into_inner().unwrap()
    }

    #[tokio::test]
    async fn changes_are_sent_by_the_leader_alone() {
        let leadership = Arc::new(Leadership::default());
        assert_eq!(arrived(&leadership).await, [Method::GET]);
        leadership.begin();
        assert_eq!(arrived(&leadership).await, [Method::GET], "never renewed");
        leadership.renewed(clock::now());
        assert_eq!(arrived(&leadership).await.len(), 4);
        leadership.end();
        assert_eq!(arrived(&leadership).await, [Method::GET]);
    }

    #[tokio::test]
    async fn a_written_lease_counts_from_before_it_was_sent() {
        for (method, status, counts) in [
            (Method::PUT, 200, true),
            (Method::POST, 201, true),
            (Method::PUT, 409, false),
            (Method::GET, 200, false),
        ] {
            let leadership = Arc::new(Leadership::default());
            leadership.begin();
            let mut noted = Noted {
                inner: service_fn(|_: Request<Body>| {
                    let response = Response::builder().status(status).body(());
                    std::future::ready(response)
                }),
                leadership: Arc::clone(&leadership),
            };
            let request = Request::builder()
                .method(method.clone())
                .body(Body::empty())
                .unwrap();
            noted.ready().await.unwrap().call(request).await.unwrap();
            assert_eq!(leadership.may_change(), counts, "{method} {status}");
        }
    }

    #[tokio::test]
    async fn only_a_watch_may_take_long() {
        let mut impatient = Impatient {
            inner: service_fn(|_: Request<Body>| {
                std::future::pending::<Result<Response<()>, BoxError>>()
            }),
            limit: Duration::from_millis(20),
        };
        let mut answer = async |uri: &str| {
            let request = Request::builder().uri(uri).body(Body::empty()).unwrap();
            let answer = impatient.ready().await.unwrap().call(request);
            tokio::time::timeout(Duration::from_millis(200), answer).await
        };
        let list = answer("/api/v1/pods?limit=1").await;
        assert!(list.is_ok_and(|answer| answer.is_err()));
        let watch = answer("/api/v1/pods?watch=true").await;
        assert!(watch.is_err(), "it waits");
    }
}
