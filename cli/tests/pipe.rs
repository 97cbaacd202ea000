//! The reader of the output may go at any time.

#![expect(clippy::unwrap_used, reason = "the helpers of tests are tests")]

use std::io::Read;
use std::process::{Command, ExitStatus, Stdio};

/// Runs the program with a standard output that has no reader; what it said on standard error, and how it ended.
fn unread(args: &[&str]) -> (String, ExitStatus) {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut child = Command::new(env!("CARGO_BIN_EXE_justitia"))
        .args(args)
        .stdout(writer)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = String::new();
    let mut stderr = child.stderr.take().unwrap();
    stderr.read_to_string(&mut said).unwrap();
    (said, child.wait().unwrap())
}

#[test]
fn a_closed_pipe_ends_quietly_what_only_tells() {
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("j.toml");
    let state = dir.path().join("state");
    std::fs::write(&config, format!("state_dir = {state:?}\n")).unwrap();
    let config = config.to_str().unwrap();
    for args in [
        &["doctor"][..],
        &["doctor", "--json"],
        &["run", "--check-config", "--config", config],
        &["--help"],
    ] {
        let (said, ended) = unread(args);
        assert_eq!(said, "", "{args:?}");
        assert!(
            [Some(0), Some(141)].contains(&ended.code()),
            "{args:?}: {ended}"
        );
    }
}

#[test]
fn a_full_disk_is_an_error() {
    let full = std::fs::File::options()
        .write(true)
        .open("/dev/full")
        .unwrap();
    let done = Command::new(env!("CARGO_BIN_EXE_justitia"))
        .arg("doctor")
        .stdout(full)
        .output()
        .unwrap();
    assert_eq!(done.status.code(), Some(1));
    let said = String::from_utf8(done.stderr).unwrap();
    assert!(
        said.starts_with("justitia: writing to standard output: No space left"),
        "{said}"
    );
}

/// Standard error has no reader either.
#[test]
fn an_error_that_nobody_reads_is_one_all_the_same() {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let ended = Command::new(env!("CARGO_BIN_EXE_justitia"))
        .args(["run", "--config", "/nonexistent/justitia.toml"])
        .stderr(writer)
        .status()
        .unwrap();
    assert_eq!(ended.code(), Some(1));
}
