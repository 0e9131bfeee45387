//! Integration tests: the real binaries against real services.
#![allow(
    clippy::panic,
    clippy::unwrap_used,
    clippy::unwrap_in_result,
    reason = "a test fails by panicking"
)]

mod chaos;
mod chart;
mod checker;
mod cloudevents;
mod consumer;
mod cores;
mod crds;
mod demo;
mod end_to_end;
mod harness;
mod kafka_admin;
mod observer;
mod operator;
mod previous;
mod relay;
mod relay_review;
mod runbooks;
mod scaling;
