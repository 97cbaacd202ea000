//! The guard as a process: it wakes the agent that started it, and nobody else.

#![expect(clippy::unwrap_used, reason = "the helpers of tests are tests")]

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use justitia_agent::enforce::guard::{SILENCE, WAKE};

/// A guard of the process `agent` that this test starts, and never beats for.
fn guard(state: &Path, agent: u32) -> Child {
    Command::new(env!("CARGO_BIN_EXE_justitia"))
        .arg("guard")
        .arg(state)
        .arg(agent.to_string())
        .stdin(Stdio::piped())
        .spawn()
        .unwrap()
}

#[test]
fn a_silent_agent_is_woken_and_goes_on() {
    let woken = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register(WAKE, Arc::clone(&woken)).unwrap();
    let dir = tempfile::tempdir().unwrap();
    // Not started by whom it was told: nobody is woken.
    let mut anothers = guard(dir.path(), 1);
    let begun = Instant::now();
    while begun.elapsed() < SILENCE + Duration::from_secs(2) {
        assert!(!woken.load(Ordering::SeqCst), "woken by another's guard");
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(anothers.try_wait().unwrap().is_none(), "it still watches");
    drop(anothers.stdin.take());
    assert!(anothers.wait().unwrap().success());

    let mut ours = guard(dir.path(), std::process::id());
    let begun = Instant::now();
    while !woken.load(Ordering::SeqCst) {
        assert!(begun.elapsed() < SILENCE * 6, "not woken");
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(begun.elapsed() >= SILENCE - Duration::from_secs(1));
    // That this is asserted shows that the signal has ended nobody.
    drop(ours.stdin.take());
    assert!(ours.wait().unwrap().success());
}
