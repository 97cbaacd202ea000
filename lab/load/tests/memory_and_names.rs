//! `justitia-load memory` and `justitia-load names` themselves.

#![expect(clippy::unwrap_used, reason = "what fails here fails the test")]

use std::process::Command;

use serde_json::Value;

/// The last line of a run that succeeds.
fn last(arguments: &str, dir: &std::path::Path) -> Value {
    let output = Command::new(env!("CARGO_BIN_EXE_justitia-load"))
        .args(arguments.split_whitespace())
        .arg("--dir")
        .arg(dir)
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    serde_json::from_str(text.lines().last().unwrap()).unwrap()
}

#[test]
fn cold_memory_is_touched_once() {
    let dir = tempfile::tempdir().unwrap();
    let found = last("memory --size 4m --duration 2", dir.path());
    assert_eq!(found["operations"], 1024);
    assert_eq!(found["read_bytes"], 0);
}

#[test]
fn names_that_do_not_exist_are_looked_up_and_made_by_nobody() {
    let dir = tempfile::tempdir().unwrap();
    let found = last("names --duration 0.5", dir.path());
    assert!(found["operations"].as_u64().unwrap() > 0, "{found}");
    assert_eq!(found["errors"], 0);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}
