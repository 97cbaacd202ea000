//! Limits do not outlast the agent that set them.

use super::*;
use std::os::unix::net::UnixStream;

/// A lock or a journal that cannot be used must not leave a limit in place.
#[test]
fn a_watchdog_that_cannot_reset_still_restores_limits() {
    let tree = Tree::new(&["a"]);
    let cgroup = unlimited(&tree, "a");
    let (mut store, _) = tree.open();
    store.set(&cgroup, LIMIT, TIGHT).unwrap();
    tree.kill(store);
    std::fs::write(limit_file(&tree, "a"), TIGHT).unwrap();
    std::fs::remove_file(tree.state().join("lock")).unwrap();
    std::fs::create_dir(tree.state().join("lock")).unwrap();
    let (state, lock) = (tree.state(), tree.state().join("lock"));
    let pipe = closed_pipe();
    let mut reported = Vec::new();
    let timeout = std::time::Duration::from_secs(60);
    let max = || limit(&tree, "a");
    watch(
        &tree.fs,
        &state,
        pipe,
        timeout,
        || unreachable!(),
        |done| {
            reported.push((done.is_ok(), max()));
            // From now on the lock can be used.
            let _ = std::fs::remove_dir(&lock);
        },
    )
    .unwrap();
    assert_eq!(reported, [(true, FREE.to_owned()), (true, FREE.to_owned())]);
    assert!(!tree.state().join("ledger").exists());
}

/// The end of the watchdog's pipe, whose other end an agent that is gone had.
fn closed_pipe() -> UnixStream {
    UnixStream::pair().unwrap().0
}

const LIMIT: Knob = Knob::MemoryHigh;

const FREE: &str = "max";

/// As long as what it replaces.
const TIGHT: &str = "777";

/// A cgroup without a limit.
fn unlimited(tree: &Tree, name: &str) -> Cgroup {
    std::fs::write(limit_file(tree, name), FREE).unwrap();
    tree.cgroup(name)
}

fn limit_file(tree: &Tree, name: &str) -> PathBuf {
    tree.path(name).join("memory.high")
}

fn limit(tree: &Tree, name: &str) -> String {
    std::fs::read_to_string(limit_file(tree, name)).unwrap()
}

#[test]
fn one_knob_can_be_restored_alone() {
    let tree = Tree::new(&["a"]);
    let cgroup = unlimited(&tree, "a");
    let (mut store, _) = tree.open();
    assert_eq!(store.restore(cgroup.id(), LIMIT), None, "not owned");
    store.set(&cgroup, LIMIT, TIGHT).unwrap();
    store.set(&cgroup, KNOB, "5000").unwrap();
    assert_eq!(limit(&tree, "a"), TIGHT);
    let back = store.restore(cgroup.id(), LIMIT);
    assert_eq!(back, Some(RestoreOutcome::Restored));
    assert_eq!(limit(&tree, "a"), FREE);
    assert_eq!((store.len(), tree.low("a")), (1, "5000".into()));

    store.set(&cgroup, LIMIT, TIGHT).unwrap();
    let theirs = "999";
    std::fs::write(limit_file(&tree, "a"), theirs).unwrap();
    let back = store.restore(cgroup.id(), LIMIT);
    assert_eq!(back, Some(external(theirs)));
    assert_eq!(limit(&tree, "a"), theirs);
    assert!(!store.may_write(cgroup.id(), LIMIT), "external from now on");
}

#[test]
fn no_limit_survives_a_kill() {
    let tree = Tree::new(&["a"]);
    let cgroup = unlimited(&tree, "a");
    let (mut store, _) = tree.open();
    store.set(&cgroup, LIMIT, TIGHT).unwrap();
    tree.kill(store);
    std::fs::write(limit_file(&tree, "a"), TIGHT).unwrap();
    let (_store, returned) = tree.open();
    assert_eq!(outcomes(returned), [restored("a")]);
    assert_eq!(limit(&tree, "a"), FREE);
}

/// A knob store that has set `memory.high` and `memory.low` of one cgroup.
fn limited(tree: &Tree, cgroup: &Cgroup) -> KnobStore {
    let (mut store, _) = tree.open();
    store.set(cgroup, LIMIT, TIGHT).unwrap();
    store.set(cgroup, KNOB, "5000").unwrap();
    store
}

/// Sets the knobs to the values of [`limited`], as when its agent was killed.
fn left_by_a_kill(tree: &Tree) {
    for (file, text) in [("memory.high", TIGHT), ("memory.low", "5000")] {
        std::fs::write(tree.path("a").join(file), text).unwrap();
    }
}

#[test]
fn limits_of_an_agent_without_heartbeat_are_restored_and_set_again_when_it_resumes() {
    let tree = Tree::new(&["a"]);
    let cgroup = unlimited(&tree, "a");
    let mut store = limited(&tree, &cgroup);
    let (pipe, mut agents) = UnixStream::pair().unwrap();
    let (reported, reports) = std::sync::mpsc::channel();
    let (interrupts, interrupted) = std::sync::mpsc::channel();
    let (fs, state) = (tree.fs.clone(), tree.state());
    let watching = std::thread::spawn(move || {
        let timeout = std::time::Duration::from_millis(200);
        let interrupt = || interrupts.send(()).unwrap();
        watch(&fs, &state, pipe, timeout, interrupt, |done| {
            reported.send(done.unwrap()).unwrap();
        })
        .unwrap();
    });
    let soon = std::time::Duration::from_secs(10);
    assert_eq!(reports.recv_timeout(soon).unwrap().len(), 1);
    assert_eq!(limit(&tree, "a"), FREE);
    assert_eq!(tree.low("a"), "5000", "memory.low throttles no tenant");
    // It is interrupted after each timeout: the first signal may have come outside of a write.
    for _ in 0..3 {
        interrupted.recv_timeout(soon).unwrap();
    }
    assert!(reports.try_recv().is_err(), "limits are restored once");
    // It resumes, and restores the limits that it believes to be set.
    std::io::Write::write_all(&mut agents, b".").unwrap();
    let back = store.restore(cgroup.id(), LIMIT);
    assert_eq!(back, Some(RestoreOutcome::Restored));
    assert!(store.may_write(cgroup.id(), LIMIT));
    store.set(&cgroup, LIMIT, TIGHT).unwrap();
    assert_eq!(
        reports.recv_timeout(soon).unwrap().len(),
        1,
        "no heartbeat again"
    );
    assert_eq!(limit(&tree, "a"), FREE);
    // It ends in order, and says so: the watchdog ends, though the lock is still held.
    std::io::Write::write_all(&mut agents, b"!").unwrap();
    watching.join().unwrap();
    drop((agents, store));
}

/// What could not be restored when the heartbeat stopped is tried again, though no heartbeat has come since.
#[test]
fn a_watchdog_restores_limits_as_soon_as_it_can() {
    let tree = Tree::new(&["a"]);
    let cgroup = unlimited(&tree, "a");
    let store = limited(&tree, &cgroup);
    // A pipe in its place is not read, and can be replaced at once: a journal that does not exist has no limits.
    let (journal, aside) = (tree.state().join("ledger"), tree.state().join("aside"));
    std::fs::rename(&journal, &aside).unwrap();
    rustix::fs::mkfifoat(rustix::fs::CWD, &journal, 0o600.into()).unwrap();
    let (pipe, agents) = UnixStream::pair().unwrap();
    let (reported, reports) = std::sync::mpsc::channel();
    let (fs, state) = (tree.fs.clone(), tree.state());
    let watching = std::thread::spawn(move || {
        let timeout = std::time::Duration::from_millis(200);
        let report = |done: Result<Vec<_>, KnobStoreError>| {
            reported
                .send(done.map(|all| all.len()).map_err(|e| e.to_string()))
                .unwrap();
        };
        watch(&fs, &state, pipe, timeout, || (), report).unwrap();
    });
    let soon = std::time::Duration::from_secs(10);
    let error = reports.recv_timeout(soon).unwrap().unwrap_err();
    assert!(error.contains("found a pipe"), "{error}");
    assert_eq!(limit(&tree, "a"), TIGHT);
    std::fs::rename(&aside, &journal).unwrap();
    while let Err(error) = &reports.recv_timeout(soon).unwrap() {
        assert!(error.contains("found a pipe"), "{error}");
    }
    assert_eq!(limit(&tree, "a"), FREE);
    std::io::Write::write_all(&mut &agents, b"!").unwrap();
    watching.join().unwrap();
    drop((agents, store));
}

#[test]
fn the_watchdog_of_a_killed_agent_resets() {
    let tree = Tree::new(&["a"]);
    let cgroup = unlimited(&tree, "a");
    let store = limited(&tree, &cgroup);
    tree.kill(store);
    left_by_a_kill(&tree);
    // The kernel closes a killed agent's end of the pipe some time before it releases the lock.
    let held = std::fs::File::create(tree.state().join("lock")).unwrap();
    held.lock().unwrap();
    let dying = std::thread::spawn(move || {
        std::thread::sleep(std::time::Duration::from_millis(2000));
        drop(held);
    });
    let pipe = closed_pipe();
    let mut reported = Vec::new();
    let timeout = std::time::Duration::from_secs(60);
    let interrupt = || unreachable!("a process that is gone is not interrupted");
    watch(&tree.fs, &tree.state(), pipe, timeout, interrupt, |done| {
        let back = done.unwrap();
        assert!(
            back.iter()
                .all(|one| one.outcome == RestoreOutcome::Restored),
            "{back:?}"
        );
        reported.push((back.len(), dying.is_finished()));
    })
    .unwrap();
    // Limits are restored before that, the other knobs after it.
    assert_eq!(reported, [(1, false), (2, true)]);
    assert_eq!(limit(&tree, "a"), FREE);
    assert!(!tree.state().join("ledger").exists());
}

/// While a limit of the agent that is gone cannot be restored, those of the next agent stay.
#[test]
fn the_watchdog_of_a_killed_agent_does_not_fight_the_next_one() {
    let tree = Tree::new(&["a", "b"]);
    let (a, b) = (unlimited(&tree, "a"), unlimited(&tree, "b"));
    let (mut killed, _) = tree.open();
    killed.set(&a, LIMIT, TIGHT).unwrap();
    killed.set(&b, LIMIT, TIGHT).unwrap();
    tree.kill(killed);
    let max = |name: &str| limit_file(&tree, name);
    std::fs::write(max("a"), TIGHT).unwrap();
    std::fs::write(max("b"), "not limits").unwrap();
    // The next agent starts before the watchdog sees that the lock is free.
    let (mut next, _) = tree.open();
    next.set(&a, LIMIT, TIGHT).unwrap();
    let pipe = closed_pipe();
    let (reported, reports) = std::sync::mpsc::channel();
    let (fs, state) = (tree.fs.clone(), tree.state());
    let watching = std::thread::spawn(move || {
        let timeout = std::time::Duration::from_secs(60);
        let report = |done: Result<Vec<_>, KnobStoreError>| reported.send(done.unwrap()).unwrap();
        watch(&fs, &state, pipe, timeout, || unreachable!(), report).unwrap();
    });
    let soon = std::time::Duration::from_secs(20);
    assert_eq!(reports.recv_timeout(soon).unwrap().len(), 2, "a and b");
    assert_eq!(limit(&tree, "a"), FREE, "it is not known who has set it");
    // The next agent sets it again.
    next.set(&a, LIMIT, TIGHT).unwrap();
    // What was left can be restored from now on.
    let limits = tree.path("b").join("new");
    std::fs::write(&limits, TIGHT).unwrap();
    std::fs::rename(limits, max("b")).unwrap();
    let back = outcomes(reports.recv_timeout(soon).unwrap());
    assert_eq!(back, [restored("b")]);
    assert_eq!(
        (limit(&tree, "a"), limit(&tree, "b")),
        (TIGHT.to_owned(), FREE.to_owned())
    );
    drop(next);
    watching.join().unwrap();
}
