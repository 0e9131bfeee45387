//! Integration tests: the real binaries against real services.
#![allow(
    clippy::panic,
    clippy::unwrap_used,
    clippy::unwrap_in_result,
    reason = "a test fails by panicking"
)]

mod demo;
mod harness;
