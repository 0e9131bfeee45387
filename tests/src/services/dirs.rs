//! Folders: the cache that outlives runs, and the private folder of this run.

use super::{is_root, say};
use anyhow::Context;
use std::fs::{self, File};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::time::Duration;

const LOCK: &str = "lock";

/// The folder `tests` of the repository.
///
/// Cargo tells it to whatever it runs. A program that was compiled for another clone with the same target folder, and is
/// still fresh, must not read that clone's files.
pub fn tests_dir() -> &'static Path {
    static DIR: LazyLock<PathBuf> = LazyLock::new(|| {
        std::env::var_os("CARGO_MANIFEST_DIR")
            .map_or_else(|| env!("CARGO_MANIFEST_DIR").into(), PathBuf::from)
    });
    &DIR
}

/// Folder for what is downloaded or built once: `$FANOUT_CACHE`, or `fanout-operator` in the user's cache folder.
pub fn cache() -> PathBuf {
    let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    variable("FANOUT_CACHE").map_or_else(
        || {
            variable("XDG_CACHE_HOME")
                .map(PathBuf::from)
                .or_else(|| variable("HOME").map(|home| PathBuf::from(home).join(".cache")))
                .expect("FANOUT_CACHE, XDG_CACHE_HOME or HOME is set")
                .join("fanout-operator")
        },
        PathBuf::from,
    )
}

/// The private folder of this process: `<pid>-<random>` with a lock file that is held as long as it lives.
///
/// The first call removes the folders of processes that are gone.
pub fn run() -> &'static Path {
    static RUN: LazyLock<(PathBuf, File)> = LazyLock::new(|| {
        make_run().unwrap_or_else(|error| panic!("no folder for this run: {error:#}"))
    });
    &RUN.0
}

/// Where the folders of all runs lie.
///
/// As root the servers run as another user, who can't look into root's home: then it is a folder in `/var/tmp`.
pub fn runs() -> anyhow::Result<PathBuf> {
    let in_cache = cache().join("run");
    fs::create_dir_all(&in_cache).with_context(|| in_cache.display().to_string())?;
    let open = |dir: &Path| fs::metadata(dir).is_ok_and(|meta| meta.mode() & 0o001 != 0);
    if !is_root() || in_cache.ancestors().all(open) {
        return Ok(in_cache);
    }
    let shared = PathBuf::from("/var/tmp/fanout-operator-run");
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o755)
        .create(&shared)?;
    // Everybody may create it first; then it is not ours to use.
    let meta = fs::symlink_metadata(&shared)?;
    anyhow::ensure!(
        meta.is_dir() && meta.uid() == 0,
        "{} belongs to another user",
        shared.display()
    );
    Ok(shared)
}

/// A new folder in [`run`], which other users may enter when `shared`.
pub fn private(name: &str, mode: u32) -> anyhow::Result<PathBuf> {
    let dir = run().join(name);
    fs::create_dir_all(&dir).with_context(|| dir.display().to_string())?;
    fs::set_permissions(&dir, fs::Permissions::from_mode(mode))?;
    Ok(dir)
}

fn make_run() -> anyhow::Result<(PathBuf, File)> {
    let runs = runs()?;
    let _guard = guard(&runs)?;
    remove_folders_of_the_dead(&runs)?;
    let dir = runs.join(format!(
        "{}-{:08x}",
        std::process::id(),
        rand::random::<u32>()
    ));
    fs::create_dir(&dir)?;
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o755))?;
    let lock = File::create(dir.join(LOCK))?;
    lock.lock()?;
    Ok((dir, lock))
}

/// Removes the folders of processes that are gone.
pub fn remove_dead() -> anyhow::Result<()> {
    let runs = runs()?;
    let _guard = guard(&runs)?;
    remove_folders_of_the_dead(&runs)
}

/// Keeps a log of a failed test in the cache, for a day.
pub fn keep(name: &str, log: &str) -> anyhow::Result<PathBuf> {
    const KEPT: Duration = Duration::from_hours(24);
    let dir = cache().join("failed");
    fs::create_dir_all(&dir)?;
    for entry in fs::read_dir(&dir)? {
        let entry = entry?;
        let age = entry.metadata()?.modified()?.elapsed().unwrap_or_default();
        if age > KEPT {
            fs::remove_file(entry.path())?;
        }
    }
    let path = dir.join(format!("{:08x}-{name}", rand::random::<u32>()));
    fs::write(&path, log)?;
    Ok(path)
}

/// One process at a time may look: a folder whose lock file is not locked yet looks dead.
fn guard(runs: &Path) -> std::io::Result<File> {
    let guard = File::create(runs.join(LOCK))?;
    guard.lock()?;
    Ok(guard)
}

fn remove_folders_of_the_dead(runs: &Path) -> anyhow::Result<()> {
    for entry in fs::read_dir(runs)? {
        let entry = entry?;
        let dir = entry.path();
        let hidden = entry.file_name().to_string_lossy().starts_with('.');
        if dir.is_dir() && !hidden && is_dead(&dir) {
            // A server that is just ending may still write; the next start removes the rest.
            fs::remove_dir_all(&dir)
                .unwrap_or_else(|error| say(&format!("{} stays: {error}", dir.display())));
        }
    }
    Ok(())
}

/// True when nobody holds the lock file in `dir`: its process is gone.
fn is_dead(dir: &Path) -> bool {
    match File::open(dir.join(LOCK)) {
        Ok(lock) => lock.try_lock().is_ok(),
        Err(error) => error.kind() == std::io::ErrorKind::NotFound,
    }
}
