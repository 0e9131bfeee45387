//! Clocks that jump: what a program's wall clock says, and the clock that goes on while a machine is suspended.
//!
//! A library that is loaded before the C library adds to what the kernel says. The monotonic clock, by which programs
//! sleep, stays as it is: a machine that wakes up has not slept for its programs.

use crate::services::{dirs, run};
use anyhow::Context;
use std::ffi::OsString;
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// Environment variables by name.
pub type Environment = Vec<(&'static str, OsString)>;

/// The clock of the programs that are started with its [`Self::environment`].
#[derive(Debug)]
pub struct Clock {
    library: &'static Path,
    path: PathBuf,
    file: File,
}

impl Clock {
    /// A clock that is right.
    ///
    /// # Errors
    /// The library can't be compiled.
    pub fn new() -> anyhow::Result<Self> {
        let path = dirs::run().join(format!("{:016x}.clock", rand::random::<u64>()));
        let file = File::create(&path).with_context(|| path.display().to_string())?;
        let clock = Self {
            library: library()?,
            path,
            file,
        };
        clock.shift(0, 0)?;
        Ok(clock)
    }

    /// What a program needs to go by this clock.
    pub fn environment(&self) -> Environment {
        vec![
            ("LD_PRELOAD", self.library.into()),
            ("CLOCK_SHIFT", self.path.clone().into()),
        ]
    }

    /// From now on the wall clock is `wall` seconds ahead, and the clock that leases are measured with `boot` seconds.
    ///
    /// # Errors
    /// The file can't be written.
    pub fn shift(&self, wall: i64, boot: i64) -> anyhow::Result<()> {
        let nanos = |seconds: i64| (seconds * 1_000_000_000).to_ne_bytes();
        // One write each: a program never sees half a number.
        self.file.write_all_at(&nanos(wall), 0)?;
        self.file.write_all_at(&nanos(boot), 8)?;
        Ok(())
    }
}

/// Compiles the library, once in a run.
fn library() -> anyhow::Result<&'static Path> {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    if let Some(library) = LIBRARY.get() {
        return Ok(library);
    }
    // Another thread may do so, too: each under a name of its own, and one of them stays.
    let made = dirs::run().join(format!("clock-{:016x}.so", rand::random::<u64>()));
    let source = dirs::tests_dir().join("src/faults/clock.c");
    run(Command::new("gcc")
        .args(["-shared", "-fPIC", "-O2", "-Wall", "-Werror", "-o"])
        .arg(&made)
        .arg(&source))?;
    Ok(LIBRARY.get_or_init(|| made))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_reads_a_clock_that_is_shifted_and_shifted_back() {
        let clock = Clock::new().unwrap();
        let year = || -> i32 {
            let printed = run(Command::new("date").arg("+%Y").envs(clock.environment()));
            printed.unwrap().trim().parse().unwrap()
        };
        let now = year();
        clock.shift(400 * 86_400, 0).unwrap();
        let later = year();
        clock.shift(-400 * 86_400, 0).unwrap();
        let earlier = year();
        assert!(earlier < now && now < later, "{earlier}, {now}, {later}");
    }
}
