//! What was cached is there after a restart and after an exec.

use super::manager::{BLOCKS, Held, Manager, content};

/// Does the kernel have what the memory store needs to be handed over?
fn memory_survives(manager: &Manager) -> bool {
    let names = manager.stored.iter().map(|(name, _)| name.as_str());
    names
        .into_iter()
        .any(|name| name == "justitia-cache-memory")
}

/// Reads a sample. What the memory store holds is hit. Of what the SSD holds some is: a block that a slow SSD does not give
/// in time comes from the image.
fn check_that_it_is_used(manager: &Manager, held: &Held, survives: bool) {
    let before = manager.hits();
    let read = manager.read(1, 16);
    let after = manager.hits();
    let from_ssd = after.ssd - before.ssd;
    assert!(
        !survives || read > 0.9 * held.memory && (from_ssd > 0) == (held.ssd > 0.0),
        "{read} of {held:?}, {from_ssd} blocks from the SSD"
    );
}

/// Reads until the stores hold what the rest compares; a slow SSD takes few blocks in a pass.
fn fill(manager: &Manager, hybrid: bool) -> Held {
    let mut held = Held::default();
    for pass in 0..64 {
        manager.read(1, 1);
        held = manager.held();
        if pass >= 3 && held.memory > 0.25 && (held.ssd > 0.1) == hybrid {
            return held;
        }
    }
    assert!(held.memory > 0.25 && (held.ssd > 0.1) == hybrid, "{held:?}");
    held
}

/// Restarts, executes again and kills a daemon. What it holds then is compared with what it held just before: what a pass
/// over all blocks hits depends on how fast the SSD took blocks in the pass before.
fn check(hybrid: bool) {
    let mut manager = Manager::new(hybrid);
    let mut daemon = manager.start();
    let before = fill(&manager, hybrid);
    manager.stop(daemon);
    let survives = memory_survives(&manager);
    daemon = manager.start();
    assert!(manager.stored.is_empty(), "it is the daemon's alone");
    let after = manager.held();
    assert!(
        !survives || after.has(&before),
        "{after:?}, {before:?} before"
    );
    check_that_it_is_used(&manager, &after, survives);
    // The same process, another program.
    let before = manager.held();
    daemon.signal("USR2");
    manager.wait_until_ready();
    assert!(daemon.0.try_wait().unwrap().is_none());
    let after = manager.held();
    assert!(
        !survives || after.has(&before),
        "{after:?}, {before:?} before"
    );
    check_that_it_is_used(&manager, &after, survives);
    // The store is emptied, as at a stop, and the image changes.
    manager.stop(daemon);
    manager.stored.clear();
    let whole: Vec<u8> = (0..BLOCKS).flat_map(|block| content(block, 2)).collect();
    std::fs::write(manager.path("image"), whole).unwrap();
    daemon = manager.start();
    manager.read(2, 1);
    // Killed: nothing is taken.
    drop(daemon);
    daemon = manager.start();
    assert!(manager.read(2, 1) < 0.01);
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

/// A configuration that has an error when the daemon is told to execute its program again changes nothing.
#[test]
fn a_configuration_with_an_error_keeps_the_daemon_that_runs() {
    let mut manager = Manager::new(false);
    let mut daemon = manager.start();
    manager.read(1, 16);
    let was = std::fs::read_to_string(manager.path("cache.toml")).unwrap();
    std::fs::write(manager.path("cache.toml"), format!("{was}unknown = 1\n")).unwrap();
    let hits = manager.hits().all();
    daemon.signal("USR2");
    // Signals are obeyed in turn: this one afterwards.
    daemon.signal("HUP");
    assert!(manager.read(1, 16) > 0.9);
    assert!(manager.hits().all() > hits);
    std::fs::write(manager.path("cache.toml"), was).unwrap();
    daemon.signal("USR2");
    manager.wait_until_ready();
    assert!(daemon.0.try_wait().unwrap().is_none());
    assert_eq!(manager.hits().all(), 0, "it counts anew");
}
