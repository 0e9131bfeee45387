//! Commands run to their end; one that fails ends the test with what it said.

use fanout_tests::services::dirs::tests_dir;
use std::io::Write as _;
use std::process::{Command, Stdio};
use std::{fs, thread};

/// Runs the command and returns its standard output; its progress on standard error is passed through.
pub(crate) fn output(command: &mut Command) -> String {
    let output = command
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {}", output.status);
    String::from_utf8(output.stdout).unwrap()
}

/// Runs the command with `input` on its standard input; `Err` holds what it said on standard error.
pub(crate) fn try_with_input(command: &mut Command, input: &str) -> Result<String, String> {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_owned();
    // In a thread of its own: with a long input both sides would wait for the other to read.
    let writer = thread::spawn(move || stdin.write_all(input.as_bytes()));
    let output = child.wait_with_output().unwrap();
    // A command that fails early closes its input, which is then reported by its status.
    let _closed = writer.join().unwrap();
    if output.status.success() {
        Ok(String::from_utf8(output.stdout).unwrap())
    } else {
        Err(String::from_utf8_lossy(&output.stderr).into_owned())
    }
}

/// Text of a file below the repository's root.
pub(crate) fn repository_file(path: &str) -> String {
    let path = tests_dir().join("..").join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}
