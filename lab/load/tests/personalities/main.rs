//! The binary itself on real files: the mix of operations, the counters against the truth, the
//! balance of files, a full file system, the barrier and the signals.

#![expect(clippy::unwrap_used, reason = "what fails here fails the test")]

mod definition;
mod runs;

use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

fn command(personality: &str, directory: &Path, options: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_justitia-load"));
    command
        .arg(personality)
        .arg("--dir")
        .arg(directory)
        .args(options.split_whitespace());
    command
}

fn lines(output: &Output) -> Vec<Value> {
    String::from_utf8_lossy(&output.stdout)
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

fn events<'a>(lines: &'a [Value], event: &str) -> Vec<&'a Value> {
    lines.iter().filter(|l| l["event"] == event).collect()
}

/// Runs to the end, without errors, and returns the lines.
fn run(personality: &str, directory: &Path, options: &str) -> Vec<Value> {
    let output = command(personality, directory, options).output().unwrap();
    assert!(
        output.status.success(),
        "{personality} {options}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    lines(&output)
}

fn last(lines: &[Value]) -> &Value {
    let last = lines.last().unwrap();
    assert_eq!(last["event"], "final");
    last
}

fn files_below(directory: &Path) -> BTreeSet<PathBuf> {
    let mut found = BTreeSet::new();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files_below(&path));
        } else {
            found.insert(path);
        }
    }
    found
}
