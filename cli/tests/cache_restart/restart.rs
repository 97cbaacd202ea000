//! What was cached is there after a restart and after an exec.

use super::manager::{BLOCKS, Manager, content};

/// Does the kernel have what the memory store needs to be handed over?
fn memory_survives(manager: &Manager) -> bool {
    let names = manager.stored.iter().map(|(name, _)| name.as_str());
    names
        .into_iter()
        .any(|name| name == "justitia-cache-memory")
}

/// Restarts, executes again and kills a daemon. Hits are those of a pass over all blocks, against those of the pass before.
fn check(hybrid: bool) {
    let mut manager = Manager::new(hybrid);
    let mut daemon = manager.start();
    let mut before = 0.0;
    for _ in 0..4 {
        before = manager.read(1);
    }
    manager.stop(daemon);
    let survives = memory_survives(&manager);
    daemon = manager.start();
    assert!(manager.stored.is_empty(), "it is the daemon's alone");
    let after = manager.read(1);
    assert!(!survives || after >= 0.9 * before, "{after} after {before}");
    // The same process, another program.
    daemon.signal("USR2");
    manager.wait_until_ready();
    assert!(daemon.0.try_wait().unwrap().is_none());
    let again = manager.read(1);
    assert!(!survives || again >= 0.9 * after, "{again} after {after}");
    // The store is emptied, as at a stop, and the image changes.
    manager.stop(daemon);
    manager.stored.clear();
    let whole: Vec<u8> = (0..BLOCKS).flat_map(|block| content(block, 2)).collect();
    std::fs::write(manager.path("image"), whole).unwrap();
    daemon = manager.start();
    manager.read(2);
    // Killed: nothing is taken.
    drop(daemon);
    daemon = manager.start();
    assert!(manager.read(2) < 0.01);
    daemon.signal("INT");
    assert!(daemon.0.wait().unwrap().success());
    assert!(!manager.path("ssd").exists());
}

#[test]
fn what_was_cached_in_memory_is_there_after_a_restart_and_after_an_exec() {
    check(false);
}

#[test]
fn what_was_cached_in_both_stores_is_there_after_a_restart_and_after_an_exec() {
    check(true);
}
