//! What can go wrong in a reconcile, in the classes that decide how it is tried again.

use crate::apply::ApplyError;
use fanout_crds::condition::reason;

/// Why a spec can't be used: only a change by a human helps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Invalid {
    /// Condition reason.
    pub(crate) reason: &'static str,
    /// Names the field and what to do; never holds a secret value or a peer's text.
    pub(crate) message: String,
}

impl Invalid {
    /// An invalid spec.
    pub(crate) fn new(reason: &'static str, message: impl Into<String>) -> Self {
        Self {
            reason,
            message: message.into(),
        }
    }
}

/// A reconcile that failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// Reading from the API server failed.
    #[error("read {what}")]
    Read {
        /// What was read.
        what: &'static str,
        /// Cause.
        #[source]
        source: Box<kube::Error>,
    },
    /// Writing to the API server failed.
    #[error(transparent)]
    Apply(#[from] ApplyError),
    /// A configuration could not be written as YAML.
    #[error("render configuration: {0}")]
    Render(String),
}

impl Error {
    /// Wraps a failed read of `what`.
    pub(crate) fn reading(what: &'static str) -> impl FnOnce(kube::Error) -> Self {
        move |source| Self::Read {
            what,
            source: Box::new(source),
        }
    }
}

/// How a failed reconcile is tried again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    /// Only a change of the object helps.
    Invalid,
    /// Somebody else wrote at the same time, or the cache is behind: again soon.
    Conflict,
    /// Later, with a growing delay.
    Transient,
}

impl Error {
    /// The class of the error.
    pub(crate) fn class(&self) -> Class {
        match self {
            Self::Render(_) => Class::Invalid,
            Self::Apply(ApplyError::NameTaken { .. } | ApplyError::Encode { .. }) => {
                Class::Transient
            }
            Self::Apply(ApplyError::Api { source, .. }) | Self::Read { source, .. } => {
                match &**source {
                    kube::Error::Api(status) if status.is_conflict() => Class::Conflict,
                    _ => Class::Transient,
                }
            }
        }
    }

    /// True when the namespace refuses new objects because it is being deleted: nothing is left to do.
    pub(crate) fn namespace_terminating(&self) -> bool {
        let Self::Apply(ApplyError::Api { source, .. }) = self else {
            return false;
        };
        let kube::Error::Api(status) = &**source else {
            return false;
        };
        status.is_forbidden()
            && status.details.as_ref().is_some_and(|details| {
                details
                    .causes
                    .iter()
                    .any(|cause| cause.reason == "NamespaceTerminating")
            })
    }

    /// Condition reason and message: a class, never the server's text.
    pub(crate) fn finding(&self) -> (&'static str, String) {
        match self {
            Self::Apply(ApplyError::NameTaken { .. }) => (reason::NAME_CONFLICT, self.to_string()),
            Self::Render(_) => (
                reason::SPEC_INVALID,
                "the configuration can't be rendered".to_owned(),
            ),
            Self::Read { source, .. } | Self::Apply(ApplyError::Api { source, .. }) => {
                let status = match &**source {
                    kube::Error::Api(status) => format!(" (HTTP {})", status.code),
                    _ => String::new(),
                };
                (
                    reason::API_ERROR,
                    format!("{self} failed{status}; it is tried again"),
                )
            }
            Self::Apply(ApplyError::Encode { .. }) => (reason::API_ERROR, self.to_string()),
        }
    }
}
