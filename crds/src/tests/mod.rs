//! Tests that need nothing but the types and the YAML in the repository.

mod rules;
mod schema;
