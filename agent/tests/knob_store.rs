//! The knob store over trees of plain files: original values are restored, values of other writers are left.

#![expect(clippy::unwrap_used, reason = "the helpers of tests are tests")]

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use justitia_agent::enforce::knob_store::{
    Corruption, KnobStore, KnobStoreError, ResetReport, RestoreOutcome, RestoredKnob, WriteOutcome,
    reset,
};
use justitia_agent::enforce::watchdog::watch;
use justitia_kernel::cgroup::{Cgroup, CgroupFs, CgroupId};
use justitia_kernel::knob::Knob;
use tempfile::TempDir;

const KNOB: Knob = Knob::MemoryLow;

/// A tree of fixtures, and a state directory beside it. Values have four digits, since a write to a plain file, unlike one
/// to a knob, does not truncate it.
struct Tree {
    dir: TempDir,
    fs: CgroupFs,
}

impl Tree {
    fn new(cgroups: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("cgroup");
        for name in cgroups {
            std::fs::create_dir_all(root.join(name)).unwrap();
            std::fs::write(root.join(name).join("memory.low"), "1000\n").unwrap();
        }
        let fs = CgroupFs::open_fixture(&root, true).unwrap();
        Self { dir, fs }
    }

    fn state(&self) -> PathBuf {
        self.dir.path().join("state")
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join("cgroup").join(name)
    }

    fn cgroup(&self, name: &str) -> Cgroup {
        Cgroup::open_at(&self.fs, Path::new(name)).unwrap()
    }

    fn low(&self, name: &str) -> String {
        let text = std::fs::read_to_string(self.path(name).join("memory.low")).unwrap();
        text.trim().to_owned()
    }

    fn write(&self, name: &str, low: &str) {
        std::fs::write(self.path(name).join("memory.low"), format!("{low}\n")).unwrap();
    }

    fn open(&self) -> (KnobStore, Vec<RestoredKnob>) {
        KnobStore::open(&self.fs, &self.state()).unwrap()
    }

    /// What an agent leaves that is killed after these writes.
    fn killed(&self, writes: &[(&str, &str)]) {
        let (mut store, _) = self.open();
        for (name, low) in writes {
            let written = store.set(&self.cgroup(name), KNOB, low).unwrap();
            assert_eq!(written, WriteOutcome::Written);
        }
        let file = std::fs::read(self.state().join("ledger")).unwrap();
        let left: Vec<String> = writes.iter().map(|(name, _)| self.low(name)).collect();
        drop(store);
        std::fs::write(self.state().join("ledger"), file).unwrap();
        for ((name, _), low) in writes.iter().zip(left) {
            self.write(name, &low);
        }
    }
}

fn outcomes(mut restored: Vec<RestoredKnob>) -> Vec<(String, RestoreOutcome)> {
    restored.sort_by(|a, b| a.path.cmp(&b.path));
    restored.into_iter().map(|r| (r.path, r.outcome)).collect()
}

/// The original value of a cgroup's [`KNOB`], if the store owns it.
fn original(store: &KnobStore, id: CgroupId) -> Option<&str> {
    let mut owned = store.owned();
    let found = owned.find(|(of, knob, ..)| (*of, *knob) == (id, KNOB))?;
    Some(found.2)
}

fn restored(name: &str) -> (String, RestoreOutcome) {
    (name.to_owned(), RestoreOutcome::Restored)
}

#[test]
fn the_original_value_is_restored_after_many_writes() {
    let tree = Tree::new(&["a", "a/b"]);
    tree.write("a/b", "2000");
    let (mut store, returned) = tree.open();
    assert_eq!(returned, []);
    for low in ["5000", "6000", "7000"] {
        for name in ["a", "a/b"] {
            let cgroup = tree.cgroup(name);
            assert_eq!(
                store.set(&cgroup, KNOB, low).unwrap(),
                WriteOutcome::Written
            );
            assert_eq!(
                store.set(&cgroup, KNOB, low).unwrap(),
                WriteOutcome::Unchanged
            );
            assert_eq!(tree.low(name), low);
        }
    }
    assert_eq!(original(&store, tree.cgroup("a/b").id()), Some("2000"));
    assert_eq!(store.len(), 2);
    assert_eq!(
        outcomes(store.restore_all()),
        [restored("a"), restored("a/b")]
    );
    assert_eq!(
        (tree.low("a"), tree.low("a/b")),
        ("1000".into(), "2000".into())
    );
    assert!(store.is_empty() && !tree.state().join("ledger").exists());
    assert_eq!(store.restore_all(), [], "a second call restores nothing");
}

#[test]
fn dropping_the_store_restores() {
    let tree = Tree::new(&["a"]);
    let (mut store, _) = tree.open();
    store.set(&tree.cgroup("a"), KNOB, "5000").unwrap();
    assert_eq!(tree.low("a"), "5000");
    drop(store);
    assert_eq!(tree.low("a"), "1000");
}

#[test]
fn a_knob_set_by_another_writer_is_external_for_good() {
    let tree = Tree::new(&["a", "b"]);
    let (mut store, _) = tree.open();
    let (a, b) = (tree.cgroup("a"), tree.cgroup("b"));
    store.set(&a, KNOB, "5000").unwrap();
    store.set(&b, KNOB, "5000").unwrap();
    assert_eq!(store.audit(a.id(), KNOB).unwrap(), None);
    tree.write("a", "3333");
    tree.write("b", "4444");
    let external = |found: &str| WriteOutcome::External {
        applied: "5000".into(),
        found: found.into(),
    };
    // Found by the next write, or by an audit.
    assert_eq!(store.set(&a, KNOB, "6000").unwrap(), external("3333"));
    assert_eq!(store.audit(b.id(), KNOB).unwrap(), Some(external("4444")));
    // It stays external, even if the other writer sets our value.
    tree.write("a", "5000");
    assert!(matches!(
        store.set(&a, KNOB, "6000").unwrap(),
        WriteOutcome::External { .. }
    ));
    assert!(!store.may_write(a.id(), KNOB) && !store.may_write(b.id(), KNOB));
    assert_eq!(store.external().count(), 2);
    assert_eq!(store.restore_all(), []);
    assert_eq!(
        (tree.low("a"), tree.low("b")),
        ("5000".into(), "4444".into())
    );
}

#[test]
fn the_next_start_and_reset_restore_what_a_killed_agent_has_left() {
    for start in [true, false] {
        let tree = Tree::new(&["a", "b", "c", "d"]);
        tree.killed(&[
            ("a", "5000"),
            ("b", "5000"),
            ("b", "6000"),
            ("c", "5000"),
            ("d", "5000"),
        ]);
        // Killed between the journal's write and the knob's: it still has an older value of ours, or the original.
        tree.write("b", "5000");
        tree.write("c", "1000");
        tree.write("d", "3333");
        let returned = if start {
            tree.open().1
        } else {
            reset(&tree.fs, &tree.state(), false).unwrap().restored
        };
        let foreign = RestoreOutcome::External {
            found: "3333".into(),
        };
        assert_eq!(
            outcomes(returned),
            [
                restored("a"),
                restored("b"),
                restored("c"),
                ("d".to_owned(), foreign)
            ]
        );
        let lows: Vec<String> = ["a", "b", "c", "d"].iter().map(|n| tree.low(n)).collect();
        assert_eq!(lows, ["1000", "1000", "1000", "3333"]);
        assert_eq!(
            reset(&tree.fs, &tree.state(), false).unwrap(),
            ResetReport::default()
        );
    }
}

#[test]
fn another_cgroup_at_the_same_path_is_not_touched() {
    let tree = Tree::new(&["a", "b", "c"]);
    let (mut store, _) = tree.open();
    let a = tree.cgroup("a");
    store.set(&a, KNOB, "5000").unwrap();
    // Renamed rather than removed: its inode, the cgroup's id, stays in use.
    std::fs::rename(tree.path("a"), tree.path("old")).unwrap();
    std::fs::create_dir(tree.path("a")).unwrap();
    tree.write("a", "5000");
    store.restore_all();
    assert_eq!(
        tree.low("a"),
        "5000",
        "only its path is that of the old cgroup"
    );
    drop(store);

    tree.killed(&[("b", "5000"), ("c", "5000")]);
    std::fs::rename(tree.path("b"), tree.path("older")).unwrap();
    std::fs::create_dir(tree.path("b")).unwrap();
    tree.write("b", "5000");
    std::fs::remove_dir_all(tree.path("c")).unwrap();
    let returned = outcomes(tree.open().1);
    assert_eq!(
        returned,
        [
            ("b".to_owned(), RestoreOutcome::Gone),
            ("c".to_owned(), RestoreOutcome::Gone)
        ]
    );
    assert_eq!(tree.low("b"), "5000");
}

#[test]
fn a_removed_cgroup_is_forgotten() {
    let tree = Tree::new(&["a", "b"]);
    let (mut store, _) = tree.open();
    let (a, b) = (tree.cgroup("a"), tree.cgroup("b"));
    store.set(&a, KNOB, "5000").unwrap();
    store.set(&b, KNOB, "5000").unwrap();
    std::fs::remove_dir_all(tree.path("a")).unwrap();
    assert_eq!(store.set(&a, KNOB, "6000").unwrap(), WriteOutcome::Gone);
    assert_eq!(store.len(), 1);
    store.on_cgroup_removed(b.id());
    assert!(store.is_empty());
    assert_eq!(store.restore_all(), []);
}

#[test]
fn a_failed_write_changes_nothing_and_the_knob_is_not_owned() {
    let tree = Tree::new(&["a", "b"]);
    let (mut store, _) = tree.open();
    let (a, b) = (tree.cgroup("a"), tree.cgroup("b"));
    store.set(&b, KNOB, "5000").unwrap();
    for name in ["a", "b"] {
        let file = tree.path(name).join("memory.low");
        std::fs::set_permissions(file, std::fs::Permissions::from_mode(0o444)).unwrap();
    }
    obey_permissions();
    let error = store.set(&a, KNOB, "5000").unwrap_err().to_string();
    assert!(error.contains("a/memory.low"), "{error}");
    assert_eq!((tree.low("a"), store.len()), ("1000".into(), 1));
    // What cannot be restored stays in the journal, for the next start.
    let returned = store.restore_all();
    assert!(
        matches!(&returned[..], [RestoredKnob { path, outcome: RestoreOutcome::Failed { .. }, .. }] if path == "b"),
        "{returned:?}"
    );
    drop(store);
    let file = tree.path("b").join("memory.low");
    std::fs::set_permissions(file, std::fs::Permissions::from_mode(0o644)).unwrap();
    assert_eq!(outcomes(tree.open().1), [restored("b")]);
    assert_eq!(
        (tree.low("a"), tree.low("b")),
        ("1000".into(), "1000".into())
    );
}

/// systemd writes a unit's properties again whenever it realizes the unit: the original value, or the default.
#[test]
fn a_reapplied_original_is_overwritten_a_bounded_number_of_times() {
    for (before, again) in [("1000", "1000"), ("1000", "0")] {
        let tree = Tree::new(&["a"]);
        tree.write("a", before);
        let (mut store, _) = tree.open();
        let a = tree.cgroup("a");
        store.set(&a, KNOB, "5000").unwrap();
        for n in 0..6 {
            tree.write("a", again);
            let found = again.to_owned();
            // Found by an audit, and by the next write.
            if n % 2 == 0 {
                let written = store.audit(a.id(), KNOB).unwrap();
                assert_eq!(written, Some(WriteOutcome::Reapplied { found }));
                assert_eq!(tree.low("a"), "5000");
            } else {
                assert_eq!(store.set(&a, KNOB, "6000").unwrap(), WriteOutcome::Written);
                assert_eq!(store.set(&a, KNOB, "5000").unwrap(), WriteOutcome::Written);
            }
        }
        // A writer that repeats it more often has decided.
        tree.write("a", again);
        let external = WriteOutcome::External {
            applied: "5000".into(),
            found: again.into(),
        };
        assert_eq!(store.audit(a.id(), KNOB).unwrap(), Some(external));
        assert!(!store.may_write(a.id(), KNOB));
        assert_eq!(store.restore_all(), []);
        assert_eq!(tree.low("a"), again);
    }
}

/// The value that another writer reapplied last replaces the original value.
#[test]
fn the_value_reapplied_last_is_restored() {
    let tree = Tree::new(&["a"]);
    let (mut store, _) = tree.open();
    let a = tree.cgroup("a");
    store.set(&a, KNOB, "5000").unwrap();
    tree.write("a", "0");
    store.audit(a.id(), KNOB).unwrap();
    assert_eq!(
        (tree.low("a").as_str(), original(&store, a.id())),
        ("5000", Some("0"))
    );
    let journal = std::fs::read(tree.state().join("ledger")).unwrap();
    assert_eq!(outcomes(store.restore_all()), [restored("a")]);
    assert_eq!(
        tree.low("a"),
        "0000",
        "0 over 5000: a plain file is not truncated"
    );
    // After a kill, too.
    drop(store);
    std::fs::write(tree.state().join("ledger"), journal).unwrap();
    tree.write("a", "5000");
    assert_eq!(outcomes(tree.open().1), [restored("a")]);
    assert_eq!(tree.low("a"), "0000");
}

/// For instance one of a delegated subtree that was collapsed into one tenant.
#[test]
fn the_knobs_of_a_cgroup_that_is_no_tenant_any_more_are_restored() {
    let tree = Tree::new(&["a"]);
    let (mut store, _) = tree.open();
    store.set(&tree.cgroup("a"), KNOB, "5000").unwrap();
    store.on_cgroup_removed(tree.cgroup("a").id());
    assert!(store.is_empty());
    assert_eq!(tree.low("a"), "1000");
}

/// A cgroup was removed if its path does not exist or is another cgroup. Other errors may be transient.
#[test]
fn a_failed_lookup_does_not_count_as_removal() {
    let tree = Tree::new(&["in/a", "in/b"]);
    tree.killed(&[("in/a", "5000"), ("in/b", "5000")]);
    let closed = |closed| {
        let mode = if closed { 0o000 } else { 0o755 };
        std::fs::set_permissions(tree.path("in"), PermissionsExt::from_mode(mode)).unwrap();
    };
    let failed = |returned: &[RestoredKnob]| {
        returned.len() == 2
            && returned
                .iter()
                .all(|r| matches!(r.outcome, RestoreOutcome::Failed { .. }))
    };
    obey_permissions();
    closed(true);
    // Neither `reset` nor a start forgets them.
    assert!(failed(
        &reset(&tree.fs, &tree.state(), false).unwrap().restored
    ));
    let (mut store, returned) = tree.open();
    assert!(failed(&returned), "{returned:?}");
    assert_eq!((store.len(), store.retry_restores()), (2, Vec::new()));
    store.restore_all();
    drop(store);
    let (mut store, returned) = tree.open();
    assert!(failed(&returned), "lost at a clean end: {returned:?}");
    // They are restored as soon as possible, and only then does the agent write them again.
    closed(false);
    assert_eq!(
        outcomes(store.retry_restores()),
        [restored("in/a"), restored("in/b")]
    );
    assert_eq!(
        (tree.low("in/a"), tree.low("in/b"), store.len()),
        ("1000".into(), "1000".into(), 0)
    );
    assert_eq!(
        store.set(&tree.cgroup("in/a"), KNOB, "7000").unwrap(),
        WriteOutcome::Written
    );
    assert_eq!(original(&store, tree.cgroup("in/a").id()), Some("1000"));
}

/// "Nothing to restore" is said only where no state directory exists.
#[test]
fn a_state_directory_that_cannot_be_looked_up_is_an_error_of_reset() {
    let tree = Tree::new(&["a"]);
    let none = reset(&tree.fs, &tree.state(), false).unwrap();
    assert_eq!(none, ResetReport::default());
    std::os::unix::fs::symlink("state", tree.state()).unwrap();
    let error = reset(&tree.fs, &tree.state(), false).unwrap_err();
    assert!(error.to_string().contains("the state directory"), "{error}");
}

/// A lock or a journal that cannot be used must not leave a limit in place.
#[test]
fn a_watchdog_that_cannot_reset_still_restores_limits() {
    let tree = Tree::new(&["a"]);
    let cgroup = unlimited(&tree, "a");
    let (mut store, _) = tree.open();
    store.set(&cgroup, DISK, TIGHT).unwrap();
    let journal = std::fs::read(tree.state().join("ledger")).unwrap();
    drop(store);
    std::fs::write(tree.state().join("ledger"), journal).unwrap();
    std::fs::write(tree.path("a").join("io.max"), TIGHT).unwrap();
    std::fs::remove_file(tree.state().join("lock")).unwrap();
    std::fs::create_dir(tree.state().join("lock")).unwrap();
    let (state, lock) = (tree.state(), tree.state().join("lock"));
    let (pipe, agents) = std::os::unix::net::UnixStream::pair().unwrap();
    drop(agents);
    let mut reported = Vec::new();
    let timeout = std::time::Duration::from_secs(60);
    let max = || io_max(&tree, "a");
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

/// If compaction fails, the journal stays in use.
#[test]
fn a_journal_that_cannot_be_compacted_stays_in_use() {
    let tree = Tree::new(&["a"]);
    let (mut store, _) = tree.open();
    std::fs::create_dir(tree.state().join("ledger.new")).unwrap();
    for n in 0..2500 {
        let low = format!("{}", 2000 + n);
        assert_eq!(
            store.set(&tree.cgroup("a"), KNOB, &low).unwrap(),
            WriteOutcome::Written
        );
    }
    assert_eq!(store.len(), 1);
    assert_eq!(outcomes(store.restore_all()), [restored("a")]);
    assert_eq!(tree.low("a"), "1000");
}

/// Drops root's capability to ignore permissions, for this thread.
fn obey_permissions() {
    use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};
    let now = capabilities(None).unwrap();
    let root = CapabilitySet::DAC_OVERRIDE | CapabilitySet::DAC_READ_SEARCH;
    set_capabilities(
        None,
        CapabilitySets {
            effective: now.effective.difference(root),
            ..now
        },
    )
    .unwrap();
}

#[test]
fn without_a_state_directory_no_knob_is_written() {
    let tree = Tree::new(&["a"]);
    std::fs::write(tree.state(), "a file where the directory should be").unwrap();
    let error = KnobStore::open(&tree.fs, &tree.state()).unwrap_err();
    assert!(matches!(error, KnobStoreError::State { .. }), "{error}");
    assert!(error.to_string().contains("state"), "{error}");
    assert_eq!(tree.low("a"), "1000");
}

#[test]
fn a_second_store_in_the_same_directory_is_refused() {
    let tree = Tree::new(&["a"]);
    let (mut first, _) = tree.open();
    first.set(&tree.cgroup("a"), KNOB, "5000").unwrap();
    let busy = |e: KnobStoreError| matches!(e, KnobStoreError::Busy(_));
    assert!(busy(KnobStore::open(&tree.fs, &tree.state()).unwrap_err()));
    assert!(busy(reset(&tree.fs, &tree.state(), false).unwrap_err()));
    assert!(busy(reset(&tree.fs, &tree.state(), true).unwrap_err()));
    assert_eq!(tree.low("a"), "5000");
    drop(first);
    assert_eq!(tree.low("a"), "1000");
    tree.open();
}

#[test]
fn a_corrupt_journal_is_refused_and_intact_entries_can_be_salvaged() {
    let tree = Tree::new(&["a", "b", "c"]);
    tree.killed(&[("a", "5000"), ("b", "5000"), ("c", "5000")]);
    let path = tree.state().join("ledger");
    let text = std::fs::read_to_string(&path).unwrap();
    let bad = text.replacen("\"path\":\"b\"", "\"path\":\"B\"", 1);
    assert_ne!(text, bad);
    std::fs::write(&path, &bad).unwrap();
    for error in [
        KnobStore::open(&tree.fs, &tree.state()).unwrap_err(),
        reset(&tree.fs, &tree.state(), false).unwrap_err(),
    ] {
        let expected = format!("the knob journal {} is corrupt at line 3:", path.display());
        assert!(error.to_string().contains(&expected), "{error}");
    }
    assert_eq!(std::fs::read_to_string(&path).unwrap(), bad);
    assert_eq!(
        (tree.low("a"), tree.low("c")),
        ("5000".into(), "5000".into())
    );

    tree.write("c", "3333");
    let foreign = RestoreOutcome::External {
        found: "3333".into(),
    };
    let done = reset(&tree.fs, &tree.state(), true).unwrap();
    let back = [restored("a"), ("c".to_owned(), foreign)];
    assert_eq!(outcomes(done.restored), back);
    let moved_to = tree.state().join("ledger.corrupt");
    assert_eq!(done.corruption, Some(Corruption { lines: 1, moved_to }));
    let lows: Vec<String> = ["a", "b", "c"].iter().map(|n| tree.low(n)).collect();
    assert_eq!(lows, ["1000", "5000", "3333"], "the entry of b is corrupt");
    let text = std::fs::read_to_string(tree.state().join("ledger.corrupt")).unwrap();
    assert_eq!(text, bad);
    tree.open();
}

#[test]
fn salvaging_a_journal_without_intact_lines_reports_the_loss() {
    for (text, lines) in [("what\nis\nthis", 3), ("", 1)] {
        let tree = Tree::new(&["a"]);
        tree.killed(&[("a", "5000")]);
        std::fs::write(tree.state().join("ledger"), text).unwrap();
        let done = reset(&tree.fs, &tree.state(), true).unwrap();
        let moved_to = tree.state().join("ledger.corrupt");
        assert_eq!(done.restored, []);
        assert_eq!(done.corruption, Some(Corruption { lines, moved_to }));
    }
}

#[test]
fn the_state_directory_is_accessible_to_its_owner_only() {
    let tree = Tree::new(&["a"]);
    let (_store, _) = tree.open();
    let mode = |path: PathBuf| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(tree.state()), 0o700);
    assert_eq!(mode(tree.state().join("ledger")), 0o600);
}

/// Otherwise its `lock` might be a link to a file that is truncated, and its journal might be forged.
#[test]
fn a_state_directory_that_others_may_write_is_refused() {
    let tree = Tree::new(&["a"]);
    std::fs::create_dir(tree.state()).unwrap();
    std::fs::write(tree.dir.path().join("precious"), "1").unwrap();
    std::os::unix::fs::symlink("../precious", tree.state().join("lock")).unwrap();
    std::fs::set_permissions(tree.state(), PermissionsExt::from_mode(0o777)).unwrap();
    let refused = KnobStore::open(&tree.fs, &tree.state())
        .unwrap_err()
        .to_string();
    assert!(refused.contains("with mode 777: change that"), "{refused}");
    assert!(reset(&tree.fs, &tree.state(), true).is_err());
    let precious = std::fs::read_to_string(tree.dir.path().join("precious")).unwrap();
    assert_eq!(precious, "1");
}

const DISK: Knob = Knob::IoMax(justitia_kernel::io::DevId { major: 8, minor: 0 });
const FREE: &str = "8:0 rbps=max wbps=max riops=max wiops=max";
const TIGHT: &str = "8:0 rbps=max wbps=100 riops=max wiops=max";

/// A cgroup with the knobs of device credits, nothing set.
fn unlimited(tree: &Tree, name: &str) -> Cgroup {
    for (file, text) in [("io.max", ""), ("memory.high", "max\n")] {
        std::fs::write(tree.path(name).join(file), text).unwrap();
    }
    tree.cgroup(name)
}

fn io_max(tree: &Tree, name: &str) -> String {
    let text = std::fs::read_to_string(tree.path(name).join("io.max")).unwrap();
    text.trim().to_owned()
}

#[test]
fn one_knob_can_be_restored_alone() {
    let tree = Tree::new(&["a"]);
    let cgroup = unlimited(&tree, "a");
    let (mut store, _) = tree.open();
    assert_eq!(store.restore(cgroup.id(), DISK), None, "not owned");
    store.set(&cgroup, DISK, TIGHT).unwrap();
    store.set(&cgroup, KNOB, "5000").unwrap();
    assert_eq!(io_max(&tree, "a"), TIGHT);
    assert_eq!(
        store.restore(cgroup.id(), DISK),
        Some(RestoreOutcome::Restored)
    );
    assert_eq!(io_max(&tree, "a"), FREE);
    assert_eq!((store.len(), tree.low("a")), (1, "5000".into()));

    store.set(&cgroup, DISK, TIGHT).unwrap();
    let theirs = "8:0 rbps=max wbps=777 riops=max wiops=max";
    std::fs::write(tree.path("a").join("io.max"), theirs).unwrap();
    let found = theirs.to_owned();
    assert_eq!(
        store.restore(cgroup.id(), DISK),
        Some(RestoreOutcome::External { found })
    );
    assert_eq!(io_max(&tree, "a"), theirs);
    assert!(!store.may_write(cgroup.id(), DISK), "external from now on");
}

#[test]
fn no_disk_limit_survives_a_kill() {
    let tree = Tree::new(&["a"]);
    let cgroup = unlimited(&tree, "a");
    let (mut store, _) = tree.open();
    store.set(&cgroup, DISK, TIGHT).unwrap();
    store.set(&cgroup, Knob::MemoryHigh, "4096").unwrap();
    let journal = std::fs::read(tree.state().join("ledger")).unwrap();
    drop(store);
    // As a killed agent leaves it.
    std::fs::write(tree.state().join("ledger"), journal).unwrap();
    std::fs::write(tree.path("a").join("io.max"), TIGHT).unwrap();
    std::fs::write(tree.path("a").join("memory.high"), "4096").unwrap();
    let (_store, returned) = tree.open();
    assert!(
        returned
            .iter()
            .all(|r| r.outcome == RestoreOutcome::Restored)
            && returned.len() == 2
    );
    assert_eq!(io_max(&tree, "a"), FREE);
    let high = std::fs::read_to_string(tree.path("a").join("memory.high")).unwrap();
    assert!(high.starts_with("max"), "{high}");
}

/// A knob store that has set `io.max`, `memory.high` and `memory.low` of one cgroup.
fn limited(tree: &Tree, cgroup: &Cgroup) -> KnobStore {
    let (mut store, _) = tree.open();
    store.set(cgroup, DISK, TIGHT).unwrap();
    store.set(cgroup, Knob::MemoryHigh, "777").unwrap();
    store.set(cgroup, KNOB, "5000").unwrap();
    store
}

/// Sets the knobs to the values of [`limited`], as when its agent was killed.
fn left_by_a_kill(tree: &Tree) {
    for (file, text) in [
        ("io.max", TIGHT),
        ("memory.high", "777"),
        ("memory.low", "5000"),
    ] {
        std::fs::write(tree.path("a").join(file), text).unwrap();
    }
}

#[test]
fn limits_of_an_agent_without_heartbeat_are_restored_and_set_again_when_it_resumes() {
    let tree = Tree::new(&["a"]);
    let cgroup = unlimited(&tree, "a");
    let mut store = limited(&tree, &cgroup);
    let (pipe, mut agents) = std::os::unix::net::UnixStream::pair().unwrap();
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
    assert_eq!(reports.recv_timeout(soon).unwrap().len(), 2);
    assert_eq!(io_max(&tree, "a"), FREE);
    assert_eq!(tree.low("a"), "5000", "memory.low throttles no tenant");
    // It is interrupted after each timeout: the first signal may have come outside of a write.
    for _ in 0..3 {
        interrupted.recv_timeout(soon).unwrap();
    }
    assert!(reports.try_recv().is_err(), "limits are restored once");
    // It resumes, and restores the limits that it believes to be set.
    std::io::Write::write_all(&mut agents, b".").unwrap();
    assert_eq!(
        store.restore(cgroup.id(), DISK),
        Some(RestoreOutcome::Restored)
    );
    assert!(store.may_write(cgroup.id(), DISK));
    store.set(&cgroup, DISK, TIGHT).unwrap();
    assert_eq!(
        reports.recv_timeout(soon).unwrap().len(),
        2,
        "no heartbeat again"
    );
    assert_eq!(io_max(&tree, "a"), FREE);
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
    let (journal, aside) = (tree.state().join("ledger"), tree.state().join("aside"));
    std::fs::rename(&journal, &aside).unwrap();
    std::fs::create_dir(&journal).unwrap();
    let (pipe, agents) = std::os::unix::net::UnixStream::pair().unwrap();
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
    assert!(error.contains("found a directory"), "{error}");
    assert_eq!(io_max(&tree, "a"), TIGHT);
    std::fs::remove_dir(&journal).unwrap();
    std::fs::rename(&aside, &journal).unwrap();
    while let Err(error) = &reports.recv_timeout(soon).unwrap() {
        assert!(error.contains("found a directory"), "{error}");
    }
    assert_eq!(io_max(&tree, "a"), FREE);
    std::io::Write::write_all(&mut &agents, b"!").unwrap();
    watching.join().unwrap();
    drop((agents, store));
}

#[test]
fn the_watchdog_of_a_killed_agent_resets() {
    let tree = Tree::new(&["a"]);
    let cgroup = unlimited(&tree, "a");
    let store = limited(&tree, &cgroup);
    let journal = std::fs::read(tree.state().join("ledger")).unwrap();
    drop(store);
    std::fs::write(tree.state().join("ledger"), journal).unwrap();
    left_by_a_kill(&tree);
    // The kernel closes a killed agent's end of the pipe some time before it releases the lock.
    let held = std::fs::File::create(tree.state().join("lock")).unwrap();
    held.lock().unwrap();
    let dying = std::thread::spawn(move || {
        std::thread::sleep(std::time::Duration::from_millis(2000));
        drop(held);
    });
    let (pipe, agents) = std::os::unix::net::UnixStream::pair().unwrap();
    drop(agents);
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
    assert_eq!(reported, [(2, false), (3, true)]);
    assert_eq!(io_max(&tree, "a"), FREE);
    assert!(!tree.state().join("ledger").exists());
}
