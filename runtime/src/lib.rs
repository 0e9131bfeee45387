//! What every binary shares: telemetry, admin server, configuration watching, shutdown, memory protection and the TLS provider.

pub mod admin;
pub mod backoff;
pub mod clock;
pub mod config;
#[cfg(feature = "filter")]
pub mod filter;
#[cfg(feature = "guard")]
pub mod guard;
pub mod process;
pub mod shutdown;
pub mod telemetry;
pub mod tls;
