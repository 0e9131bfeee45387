//! What happens outside of Kubernetes when an object is deleted.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Reason of the Warning event about an object that is gone while something that `deletionPolicy: Delete` should have deleted
/// stays.
pub const CLEANUP_INCOMPLETE: &str = "CleanupIncomplete";

/// What happens outside of Kubernetes when the object is deleted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum DeletionPolicy {
    /// Nothing: the object goes at once.
    #[default]
    Retain,
    /// What the operator keeps there for the object is deleted first.
    Delete,
}
