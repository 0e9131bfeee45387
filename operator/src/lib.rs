//! Placeholder.

pub mod kafka;
