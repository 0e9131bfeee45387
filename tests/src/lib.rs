//! Harness for the integration tests: real services, a sandbox for each test, the real binaries, a webhook
//! receiver and the checker that says whether anything was lost, repeated or reordered.
//!
//! Start with [`Sandbox::new`]; it brings up PostgreSQL and Kafka on first use. Services are shared by all tests of
//! one test binary and end with it, also when it is killed.
#![allow(
    clippy::panic,
    clippy::unwrap_used,
    clippy::unwrap_in_result,
    reason = "a test harness fails by panicking: the message is what the developer reads"
)]

pub mod chaos;
pub mod checker;
pub mod configs;
pub mod documents;
pub mod faults;
pub mod fleet;
pub mod modes;
pub mod objects;
pub mod plot;
pub mod process;
pub mod produced;
pub mod receiver;
pub mod sdks;
pub mod services;
pub mod verdict;

mod deadline;
mod sandbox;

pub use deadline::{Deadline, eventually};
pub use sandbox::{PARTITIONS, Sandbox};
