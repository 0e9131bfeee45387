//! Tests that need nothing but the types and the YAML in the repository.

mod rules;
mod schema;

use std::path::PathBuf;

/// This crate's folder in the clone that is tested, which need not be the one this was compiled for.
fn folder() -> PathBuf {
    std::env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| env!("CARGO_MANIFEST_DIR").into(), PathBuf::from)
}
