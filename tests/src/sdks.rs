//! The official CloudEvents SDKs, each as a program that parses messages (`tests/sdk`): installed or built once, kept in the
//! cache.

use crate::services::{dirs, packages, run, say};
use anyhow::Context as _;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A message to parse.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Message {
    /// `kafka` or `http`.
    pub protocol: &'static str,
    /// Headers by name; HTTP's in lower case.
    pub headers: BTreeMap<String, String>,
    /// Key of a record.
    pub key: Option<String>,
    /// Value or body, base64.
    pub value: String,
}

/// An event as an SDK understands it.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Parsed {
    /// Context attributes without `time`.
    pub attributes: BTreeMap<String, Option<String>>,
    /// `time`, milliseconds since 1970.
    pub milliseconds: i64,
    /// Data.
    pub data: Option<Data>,
}

/// Data as an SDK gives it.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Data {
    /// Bytes, base64.
    Base64(String),
    /// A JSON value, or a text.
    Value(serde_json::Value),
}

/// An SDK.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sdk {
    /// `cloudevents` of PyPI.
    Python,
    /// `cloudevents` of npm.
    JavaScript,
    /// `cloudevents-sdk` of crates.io.
    Rust,
}

impl Sdk {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Python, Self::JavaScript, Self::Rust];

    /// Parses `messages`; fails where one of them is no event. Blocks; the first call may install.
    pub fn parse(self, messages: &[Message]) -> anyhow::Result<Vec<Parsed>> {
        let mut child = self
            .program()?
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        // Small enough for a pipe: nobody reads before all is written.
        let mut input = child.stdin.take().context("standard input")?;
        input.write_all(&serde_json::to_vec(messages)?)?;
        drop(input);
        let output = child.wait_with_output()?;
        anyhow::ensure!(
            output.status.success(),
            "{self:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(serde_json::from_slice(&output.stdout)?)
    }

    fn program(self) -> anyhow::Result<Command> {
        packages()?;
        let sources = dirs::tests_dir().join("sdk");
        Ok(match self {
            Self::Python => {
                let list = sources.join("requirements.txt");
                let installed = installed("python", &[&list], |folder| {
                    run(Command::new("python3")
                        .args(["-m", "pip", "install", "--quiet"])
                        .args(["--disable-pip-version-check", "--root-user-action=ignore"])
                        .arg("--target")
                        .arg(folder)
                        .arg("-r")
                        .arg(&list))
                    .map(drop)
                })?;
                let mut command = Command::new("python3");
                command
                    .arg(sources.join("parse.py"))
                    .env("PYTHONPATH", installed)
                    .env("PYTHONDONTWRITEBYTECODE", "1");
                command
            }
            Self::JavaScript => {
                let list = sources.join("package.json");
                let installed = installed("javascript", &[&list], |folder| {
                    fs::create_dir_all(folder)?;
                    fs::copy(&list, folder.join("package.json"))?;
                    run(Command::new("npm")
                        .args(["install", "--silent", "--no-audit", "--no-fund"])
                        .args(["--ignore-scripts", "--no-package-lock", "--prefix"])
                        .arg(folder))
                    .map(drop)
                })?;
                let mut command = Command::new("node");
                command
                    .arg(sources.join("parse.cjs"))
                    .env("NODE_PATH", installed.join("node_modules"));
                command
            }
            Self::Rust => {
                let manifest = sources.join("rust/Cargo.toml");
                let lock = sources.join("rust/Cargo.lock");
                let main = sources.join("rust/src/main.rs");
                let built = installed("rust", &[&manifest, &lock, &main], |folder| {
                    run(
                        Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
                            .args(["build", "--quiet", "--locked", "--manifest-path"])
                            .arg(&manifest)
                            .arg("--target-dir")
                            .arg(folder),
                    )
                    .map(drop)
                })?;
                Command::new(built.join("debug/parse"))
            }
        })
    }
}

/// The folder that `install` fills, named by the contents of `files`.
fn installed(
    name: &str,
    files: &[&Path],
    install: impl FnOnce(&Path) -> anyhow::Result<()>,
) -> anyhow::Result<PathBuf> {
    let contents = files
        .iter()
        .map(fs::read)
        .collect::<std::io::Result<Vec<_>>>()?;
    let all = dirs::cache().join("sdk");
    let hash = crate::services::short_hash(&contents.concat());
    let folder = all.join(format!("{name}-{hash}"));
    fs::create_dir_all(&all)?;
    // One process installs, the others wait for it.
    let guard = File::create(all.join(format!("{name}.lock")))?;
    guard.lock()?;
    if !folder.exists() {
        say(&format!("installing the CloudEvents SDK for {name} (once)"));
        let partial = folder.with_extension("partial");
        if partial.exists() {
            fs::remove_dir_all(&partial)?;
        }
        install(&partial)?;
        fs::rename(&partial, &folder)?;
    }
    Ok(folder)
}
