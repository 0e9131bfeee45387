//! Keeps what a process has in memory, credentials and signing keys, out of core dumps and away from others.

use rustix::process::{DumpableBehavior, Resource, Rlimit, set_dumpable_behavior, setrlimit};

/// Forbids core dumps of this process. Called first thing in each `main`, before a secret is read.
///
/// Whoever runs as the same user can't read its memory or environment in `/proc` any more either, nor attach a debugger.
///
/// # Errors
/// The kernel refuses; the process should not go on then.
pub fn protect_memory() -> std::io::Result<()> {
    let none = Rlimit {
        current: Some(0),
        maximum: Some(0),
    };
    setrlimit(Resource::Core, none)?;
    // The kernel ignores the limit where it pipes cores to a program.
    set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    Ok(())
}
