//! The API of group `fanout.dev`: the types of both kinds, their rules, and the CRDs generated from them.
//!
//! The YAML lies beside this crate's source (`crds/*.yaml`) and is written by `make generate`.

// The derive of KubeSchema makes a second, private struct that is `pub` inside a function.
#![allow(unreachable_pub)]

pub mod columns;
pub mod condition;
pub mod deletion;
pub mod fanout_topic;
pub mod pod;
pub mod reference;
pub mod scaling;
mod schema;
pub mod subscription;
#[cfg(test)]
mod tests;

pub use deletion::DeletionPolicy;
pub use fanout_topic::{FanoutTopic, FanoutTopicSpec, FanoutTopicStatus};
pub use scaling::{Scaling, ScalingStatus};
pub use schema::{crds, yaml};
pub use subscription::{Subscription, SubscriptionSpec, SubscriptionStatus};

/// API group of both kinds.
pub const GROUP: &str = "fanout.dev";
/// The only version served.
pub const VERSION: &str = "v1alpha1";
/// Longest name of a FanoutTopic or Subscription, so that what is derived from it stays readable.
pub const NAME_MAX: usize = 40;
