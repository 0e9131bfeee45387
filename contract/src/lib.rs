//! What the operator, the relay and the consumers agree on.
//!
//! Each seam between two binaries has one definition here: the names of things ([`names`]), the record that
//! travels through the log ([`envelope`]), the files a worker is configured by ([`relay`], [`consumer`],
//! [`kafka`]) and the documents it answers on `/status`. No I/O, no clock, no client.

pub mod consumer;
pub mod envelope;
pub mod kafka;
pub mod names;
pub mod reason;
pub mod relay;
