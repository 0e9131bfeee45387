//! What a client last knew about its connections: librdkafka reports a refused login or certificate as a client-level
//! error only; the calls that wait for the connection merely time out.

use super::error::{ErrorClass, Failure};
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// For this long after a refused login or certificate further calls fail at once, so that a thousand objects with
/// one wrong password do not wait out a thousand deadlines, nor lock the account.
const REFUSED_FOR: Duration = Duration::from_secs(5);

/// The latest connection problem that no answer of a broker has refuted.
#[derive(Clone, Copy, Debug)]
pub(super) struct Problem {
    pub(super) class: ErrorClass,
    at: Instant,
}

impl Problem {
    /// Waiting does not help: the brokers were reached and refused us.
    fn is_refusal(self) -> bool {
        matches!(
            self.class,
            ErrorClass::AuthenticationFailed | ErrorClass::TlsFailed
        )
    }
}

/// Shared by the thread that receives client-level errors and the calls that wait.
#[derive(Debug)]
pub(super) struct Connection(watch::Sender<Option<Problem>>);

impl Connection {
    pub(super) fn new() -> Self {
        Self(watch::Sender::new(None))
    }

    /// Records a client-level error. A refusal is not hidden by the disconnect that follows it.
    pub(super) fn failed(&self, failure: Failure) {
        let class = failure.class();
        let relevant = matches!(
            class,
            ErrorClass::Unreachable | ErrorClass::AuthenticationFailed | ErrorClass::TlsFailed
        );
        if !relevant {
            return;
        }
        let at = Instant::now();
        self.0.send_if_modified(|problem| {
            let replace =
                class != ErrorClass::Unreachable || !problem.is_some_and(Problem::is_refusal);
            if replace {
                *problem = Some(Problem { class, at });
            }
            replace
        });
    }

    /// A broker answered.
    pub(super) fn works(&self) {
        self.0.send_if_modified(|problem| problem.take().is_some());
    }

    /// The problem that explains why a call got no answer.
    pub(super) fn problem(&self) -> Option<ErrorClass> {
        self.0.borrow().map(|problem| problem.class)
    }

    /// A refusal that is recent enough to fail without trying.
    pub(super) fn refused(&self) -> Option<ErrorClass> {
        self.0
            .borrow()
            .filter(|problem| problem.is_refusal() && problem.at.elapsed() < REFUSED_FOR)
            .map(|problem| problem.class)
    }

    /// A call ran into its deadline: a refusal it waited behind counts as fresh again.
    pub(super) fn still_waiting(&self) {
        self.0.send_if_modified(|problem| {
            if let Some(problem) = problem {
                problem.at = Instant::now();
            }
            false
        });
    }

    /// Ends when the brokers refuse us, from now on.
    pub(super) async fn next_refusal(&self) -> ErrorClass {
        let mut changes = self.0.subscribe();
        loop {
            if changes.changed().await.is_err() {
                // The sender lives in `self`.
                std::future::pending::<()>().await;
            }
            if let Some(problem) = changes
                .borrow_and_update()
                .filter(|problem| problem.is_refusal())
            {
                return problem.class;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rdkafka::error::RDKafkaErrorCode as Code;

    #[test]
    fn a_disconnect_does_not_hide_the_refusal_before_it() {
        let connection = Connection::new();
        connection.failed(Code::BrokerTransportFailure.into());
        assert_eq!(connection.problem(), Some(ErrorClass::Unreachable));
        assert_eq!(connection.refused(), None);
        connection.failed(Code::Authentication.into());
        connection.failed(Code::AllBrokersDown.into());
        assert_eq!(connection.problem(), Some(ErrorClass::AuthenticationFailed));
        assert_eq!(connection.refused(), Some(ErrorClass::AuthenticationFailed));
        connection.works();
        assert_eq!(connection.problem(), None);
    }

    #[test]
    fn errors_of_requests_are_no_connection_problems() {
        let connection = Connection::new();
        connection.failed(Code::UnknownTopicOrPartition.into());
        connection.failed(Code::OperationTimedOut.into());
        assert_eq!(connection.problem(), None);
    }
}
