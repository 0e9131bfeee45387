//! Integration tests: the real binaries against real services.

mod harness;
