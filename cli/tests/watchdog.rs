//! The watchdog as a process: it interrupts the agent that has started it, and no other process.

#![expect(clippy::unwrap_used, reason = "the helpers of tests are tests")]

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use justitia_agent::knobs::watchdog::{INTERRUPT, TIMEOUT};

/// A watchdog of the process `agent`, without heartbeats.
fn watchdog(state: &Path, agent: u32) -> Child {
    Command::new(env!("CARGO_BIN_EXE_justitia"))
        .arg("watchdog")
        .arg(state)
        .arg(agent.to_string())
        .stdin(Stdio::piped())
        .spawn()
        .unwrap()
}

#[test]
fn an_agent_without_heartbeat_is_interrupted_and_survives() {
    let interrupted = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register(INTERRUPT, Arc::clone(&interrupted)).unwrap();
    let dir = tempfile::tempdir().unwrap();
    // Its parent is not the process whose number it was given: it interrupts none.
    let mut other = watchdog(dir.path(), 1);
    let begun = Instant::now();
    while begun.elapsed() < TIMEOUT + Duration::from_secs(2) {
        assert!(
            !interrupted.load(Ordering::SeqCst),
            "interrupted by the watchdog of another process"
        );
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(other.try_wait().unwrap().is_none(), "it still watches");
    drop(other.stdin.take());
    assert!(other.wait().unwrap().success());

    let mut ours = watchdog(dir.path(), std::process::id());
    let begun = Instant::now();
    while !interrupted.load(Ordering::SeqCst) {
        assert!(begun.elapsed() < TIMEOUT * 6, "not interrupted");
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(begun.elapsed() >= TIMEOUT - Duration::from_secs(1));
    // The signal has ended no process: this one still runs.
    drop(ours.stdin.take());
    assert!(ours.wait().unwrap().success());
}
