//! Java programs from Maven artifacts: downloaded once, kept in the cache.

use super::{dirs, run, say};
use sha2::{Digest, Sha256};
use std::fmt::Write as _;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

const COPY_DEPENDENCIES: &str =
    "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies";

/// Folder with what `tests/<name>/pom.xml` depends on, in the cache, and a lock: other processes wait until it is dropped.
pub(super) fn cached(name: &str, what: &str) -> anyhow::Result<(PathBuf, File)> {
    let pom = dirs::tests_dir().join(name).join("pom.xml");
    let all = dirs::cache().join(name);
    let dir = all.join(short_hash(&fs::read(&pom)?));
    fs::create_dir_all(&all)?;
    // One process installs, the others wait for it.
    let guard = File::create(all.join("lock"))?;
    guard.lock()?;
    if !libs(&dir).exists() {
        download(&pom, &dir, what)?;
    }
    Ok((dir, guard))
}

fn libs(dir: &Path) -> PathBuf {
    dir.join("libs")
}

fn download(pom: &Path, dir: &Path, what: &str) -> anyhow::Result<()> {
    say(&format!(
        "downloading from Maven to {} (once): {what}",
        dir.display()
    ));
    let partial = dir.with_extension("partial");
    if partial.exists() {
        fs::remove_dir_all(&partial)?;
    }
    run(Command::new("mvn")
        .args(["-q", "-B", "-f"])
        .arg(pom)
        .arg(COPY_DEPENDENCIES)
        .arg(format!("-DoutputDirectory={}", libs(&partial).display()))
        .arg("-DincludeScope=runtime")
        .current_dir(dirs::run()))?;
    fs::rename(&partial, dir)?;
    Ok(())
}

/// The jars in a fixed order: a class archive is valid for exactly the class path it was made with.
pub(super) fn class_path(dir: &Path) -> anyhow::Result<String> {
    let libs = libs(dir);
    let mut jars: Vec<String> = fs::read_dir(&libs)?
        .map(|entry| Ok(entry?.path().display().to_string()))
        .collect::<std::io::Result<_>>()?;
    jars.sort();
    anyhow::ensure!(!jars.is_empty(), "no jars in {}", libs.display());
    Ok(jars.join(":"))
}

/// The start of the SHA-256 in hex: enough to name a folder.
pub(crate) fn short_hash(contents: &[u8]) -> String {
    let digest = Sha256::digest(contents);
    digest.iter().take(6).fold(String::new(), |mut hex, byte| {
        let _infallible = write!(hex, "{byte:02x}");
        hex
    })
}
