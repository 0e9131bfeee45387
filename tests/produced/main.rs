//! The suite's last step: searches everything that its processes produced for planted secrets, and compares the rights
//! that the operator used with those that the chart gives it.

use anyhow::Context as _;
use fanout_tests::produced::{rights, search};
use fanout_tests::services::dirs;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::ExitCode;

/// What a whole run must have left, by the end of a file's name: without it nothing would be proven.
const EXPECTED: [&str; 7] = [
    "log",
    "audit.log",
    "in-process.log",
    ".arguments",
    ".environment",
    ".status",
    ".metrics",
];
/// Places that are shown.
const SHOWN: usize = 50;

fn main() -> anyhow::Result<ExitCode> {
    let dir = fanout_tests::produced::dir().context("FANOUT_PRODUCED names no folder")?;
    let faults = [missing(dir)?, leaks(dir)?, differences(dir)?].concat();
    for fault in faults.iter().take(SHOWN) {
        eprintln!("{fault}");
    }
    if faults.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    eprintln!("{} faults in {}", faults.len(), dir.display());
    Ok(ExitCode::FAILURE)
}

fn missing(dir: &Path) -> anyhow::Result<Vec<String>> {
    let mut files = BTreeMap::new();
    let mut bytes = 0;
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let size = entry.metadata()?.len();
        bytes += size;
        let name = entry.file_name().to_string_lossy().into_owned();
        for end in EXPECTED.iter().filter(|end| {
            // Most processes are given no variable of their own.
            let counts = size > 0 || **end == ".environment";
            counts && name.ends_with(*end)
        }) {
            *files.entry(*end).or_insert(0) += 1;
        }
    }
    eprintln!("searching {} MiB: {files:?}", bytes >> 20);
    let missing = EXPECTED.iter().filter(|end| !files.contains_key(*end));
    Ok(missing
        .map(|end| format!("no file …{end} was kept"))
        .collect())
}

fn leaks(dir: &Path) -> anyhow::Result<Vec<String>> {
    let found = search::search(dir)?.into_iter();
    Ok(found
        .map(|found| format!("{}: {}", found.place, found.what))
        .collect())
}

fn differences(dir: &Path) -> anyhow::Result<Vec<String>> {
    let manifests = fs::read_to_string(dirs::tests_dir().join("../manifests/install.yaml"))?;
    let used = rights::used(dir)?;
    Ok(rights::differences(&rights::granted(&manifests)?, &used))
}
