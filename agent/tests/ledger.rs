//! The ledger over trees of plain files: what stood before comes back, what is others' is left.

#![expect(clippy::unwrap_used, reason = "the helpers of tests are tests")]

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use justitia_agent::enforce::guard::guard;
use justitia_agent::enforce::ledger::{
    Back, Damage, Ledger, LedgerError, Reset, Returned, Written, reset,
};
use justitia_kernel::cgroup::{Cgroup, CgroupFs};
use justitia_kernel::knob::Knob;
use tempfile::TempDir;

const KNOB: Knob = Knob::MemoryLow;

/// A tree of fixtures, and a state directory beside it. Values have four digits: a plain file is not cut when
/// it is written, as a knob is.
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

    fn open(&self) -> (Ledger, Vec<Returned>) {
        Ledger::open(&self.fs, &self.state()).unwrap()
    }

    /// What an agent leaves that is killed after these writes.
    fn killed(&self, writes: &[(&str, &str)]) {
        let (mut ledger, _) = self.open();
        for (name, low) in writes {
            let written = ledger.set(&self.cgroup(name), KNOB, low).unwrap();
            assert_eq!(written, Written::Yes);
        }
        let file = std::fs::read(self.state().join("ledger")).unwrap();
        let left: Vec<String> = writes.iter().map(|(name, _)| self.low(name)).collect();
        drop(ledger);
        std::fs::write(self.state().join("ledger"), file).unwrap();
        for ((name, _), low) in writes.iter().zip(left) {
            self.write(name, &low);
        }
    }
}

fn backs(mut returned: Vec<Returned>) -> Vec<(String, Back)> {
    returned.sort_by(|a, b| a.path.cmp(&b.path));
    returned.into_iter().map(|r| (r.path, r.back)).collect()
}

fn restored(name: &str) -> (String, Back) {
    (name.to_owned(), Back::Restored)
}

#[test]
fn the_first_value_comes_back_after_many_writes() {
    let tree = Tree::new(&["a", "a/b"]);
    tree.write("a/b", "2000");
    let (mut ledger, returned) = tree.open();
    assert_eq!(returned, []);
    for low in ["5000", "6000", "7000"] {
        for name in ["a", "a/b"] {
            let cgroup = tree.cgroup(name);
            assert_eq!(ledger.set(&cgroup, KNOB, low).unwrap(), Written::Yes);
            assert_eq!(ledger.set(&cgroup, KNOB, low).unwrap(), Written::Already);
            assert_eq!(tree.low(name), low);
        }
    }
    assert_eq!(ledger.before(tree.cgroup("a/b").id(), KNOB), Some("2000"));
    assert_eq!(ledger.len(), 2);
    assert_eq!(backs(ledger.restore()), [restored("a"), restored("a/b")]);
    assert_eq!(
        (tree.low("a"), tree.low("a/b")),
        ("1000".into(), "2000".into())
    );
    assert!(ledger.is_empty() && !tree.state().join("ledger").exists());
    assert_eq!(ledger.restore(), [], "once is enough");
}

#[test]
fn dropping_gives_back() {
    let tree = Tree::new(&["a"]);
    let (mut ledger, _) = tree.open();
    ledger.set(&tree.cgroup("a"), KNOB, "5000").unwrap();
    assert_eq!(tree.low("a"), "5000");
    drop(ledger);
    assert_eq!(tree.low("a"), "1000");
}

#[test]
fn a_foreign_value_is_yielded_for_good() {
    let tree = Tree::new(&["a", "b"]);
    let (mut ledger, _) = tree.open();
    let (a, b) = (tree.cgroup("a"), tree.cgroup("b"));
    ledger.set(&a, KNOB, "5000").unwrap();
    ledger.set(&b, KNOB, "5000").unwrap();
    assert_eq!(ledger.audit(a.id(), KNOB).unwrap(), None);
    tree.write("a", "3333");
    tree.write("b", "4444");
    let yielded = |found: &str| Written::Yielded {
        ours: "5000".into(),
        found: found.into(),
    };
    // Found by the next write, or by looking.
    assert_eq!(ledger.set(&a, KNOB, "6000").unwrap(), yielded("3333"));
    assert_eq!(ledger.audit(b.id(), KNOB).unwrap(), Some(yielded("4444")));
    // Later too, also if they put our own value there.
    tree.write("a", "5000");
    assert!(matches!(
        ledger.set(&a, KNOB, "6000").unwrap(),
        Written::Yielded { .. }
    ));
    assert!(!ledger.may_write(a.id(), KNOB) && !ledger.may_write(b.id(), KNOB));
    assert_eq!(ledger.yielded().count(), 2);
    assert_eq!(ledger.restore(), []);
    assert_eq!(
        (tree.low("a"), tree.low("b")),
        ("5000".into(), "4444".into())
    );
}

#[test]
fn the_next_start_and_reset_give_back_what_a_kill_has_left() {
    for start in [true, false] {
        let tree = Tree::new(&["a", "b", "c", "d"]);
        tree.killed(&[
            ("a", "5000"),
            ("b", "5000"),
            ("b", "6000"),
            ("c", "5000"),
            ("d", "5000"),
        ]);
        // Killed between the journal and the knob: an older value of ours, or the first, still stands.
        tree.write("b", "5000");
        tree.write("c", "1000");
        tree.write("d", "3333");
        let returned = if start {
            tree.open().1
        } else {
            reset(&tree.fs, &tree.state(), false).unwrap().returned
        };
        let foreign = Back::Foreign {
            found: "3333".into(),
        };
        assert_eq!(
            backs(returned),
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
            Reset::default()
        );
    }
}

#[test]
fn another_cgroup_at_the_same_path_is_not_touched() {
    let tree = Tree::new(&["a", "b", "c"]);
    let (mut ledger, _) = tree.open();
    let a = tree.cgroup("a");
    ledger.set(&a, KNOB, "5000").unwrap();
    // Renamed rather than removed: its inode, the cgroup's id, stays in use.
    std::fs::rename(tree.path("a"), tree.path("old")).unwrap();
    std::fs::create_dir(tree.path("a")).unwrap();
    tree.write("a", "5000");
    ledger.restore();
    assert_eq!(
        tree.low("a"),
        "5000",
        "only its name is that of the old one"
    );
    drop(ledger);

    tree.killed(&[("b", "5000"), ("c", "5000")]);
    std::fs::rename(tree.path("b"), tree.path("older")).unwrap();
    std::fs::create_dir(tree.path("b")).unwrap();
    tree.write("b", "5000");
    std::fs::remove_dir_all(tree.path("c")).unwrap();
    let returned = backs(tree.open().1);
    assert_eq!(
        returned,
        [("b".to_owned(), Back::Gone), ("c".to_owned(), Back::Gone)]
    );
    assert_eq!(tree.low("b"), "5000");
}

#[test]
fn a_cgroup_that_goes_is_forgotten() {
    let tree = Tree::new(&["a", "b"]);
    let (mut ledger, _) = tree.open();
    let (a, b) = (tree.cgroup("a"), tree.cgroup("b"));
    ledger.set(&a, KNOB, "5000").unwrap();
    ledger.set(&b, KNOB, "5000").unwrap();
    std::fs::remove_dir_all(tree.path("a")).unwrap();
    assert_eq!(ledger.set(&a, KNOB, "6000").unwrap(), Written::Gone);
    assert_eq!(ledger.len(), 1);
    ledger.cgroup_gone(b.id());
    assert!(ledger.is_empty());
    assert_eq!(ledger.restore(), []);
}

#[test]
fn a_write_that_fails_changes_nothing_and_is_not_held() {
    let tree = Tree::new(&["a", "b"]);
    let (mut ledger, _) = tree.open();
    let (a, b) = (tree.cgroup("a"), tree.cgroup("b"));
    ledger.set(&b, KNOB, "5000").unwrap();
    for name in ["a", "b"] {
        let file = tree.path(name).join("memory.low");
        std::fs::set_permissions(file, std::fs::Permissions::from_mode(0o444)).unwrap();
    }
    obey_permissions();
    let error = ledger.set(&a, KNOB, "5000").unwrap_err().to_string();
    assert!(error.contains("a/memory.low"), "{error}");
    assert_eq!((tree.low("a"), ledger.len()), ("1000".into(), 1));
    // What cannot be given back stays in the ledger, for the next try.
    let returned = ledger.restore();
    assert!(
        matches!(&returned[..], [Returned { path, back: Back::Failed { .. }, .. }] if path == "b"),
        "{returned:?}"
    );
    drop(ledger);
    let file = tree.path("b").join("memory.low");
    std::fs::set_permissions(file, std::fs::Permissions::from_mode(0o644)).unwrap();
    assert_eq!(backs(tree.open().1), [restored("b")]);
    assert_eq!(
        (tree.low("a"), tree.low("b")),
        ("1000".into(), "1000".into())
    );
}

/// systemd writes a unit's properties again whenever it realises the unit: what stood there before us, or the default.
#[test]
fn a_value_that_is_only_applied_again_is_written_over_a_bounded_number_of_times() {
    for (before, again) in [("1000", "1000"), ("1000", "0")] {
        let tree = Tree::new(&["a"]);
        tree.write("a", before);
        let (mut ledger, _) = tree.open();
        let a = tree.cgroup("a");
        ledger.set(&a, KNOB, "5000").unwrap();
        for n in 0..6 {
            tree.write("a", again);
            let found = again.to_owned();
            // By who looks, and by the next write.
            if n % 2 == 0 {
                let written = ledger.audit(a.id(), KNOB).unwrap();
                assert_eq!(written, Some(Written::Reapplied { found }));
                assert_eq!(tree.low("a"), "5000");
            } else {
                assert_eq!(ledger.set(&a, KNOB, "6000").unwrap(), Written::Yes);
                assert_eq!(ledger.set(&a, KNOB, "5000").unwrap(), Written::Yes);
            }
        }
        // Who insists has decided.
        tree.write("a", again);
        let yielded = Written::Yielded {
            ours: "5000".into(),
            found: again.into(),
        };
        assert_eq!(ledger.audit(a.id(), KNOB).unwrap(), Some(yielded));
        assert!(!ledger.may_write(a.id(), KNOB));
        assert_eq!(ledger.restore(), []);
        assert_eq!(tree.low("a"), again);
    }
}

/// The last word of somebody else on what stands there without us is what comes back.
#[test]
fn what_was_applied_last_comes_back() {
    let tree = Tree::new(&["a"]);
    let (mut ledger, _) = tree.open();
    let a = tree.cgroup("a");
    ledger.set(&a, KNOB, "5000").unwrap();
    tree.write("a", "0");
    ledger.audit(a.id(), KNOB).unwrap();
    assert_eq!(
        (tree.low("a").as_str(), ledger.before(a.id(), KNOB)),
        ("5000", Some("0"))
    );
    let journal = std::fs::read(tree.state().join("ledger")).unwrap();
    assert_eq!(backs(ledger.restore()), [restored("a")]);
    assert_eq!(tree.low("a"), "0000", "0, where plain files are not cut");
    // After a kill, too.
    drop(ledger);
    std::fs::write(tree.state().join("ledger"), journal).unwrap();
    tree.write("a", "5000");
    assert_eq!(backs(tree.open().1), [restored("a")]);
    assert_eq!(tree.low("a"), "0000");
}

/// A crowd of a delegate's that is one tenant from now on, for instance.
#[test]
fn a_cgroup_that_is_no_tenant_any_more_gets_its_values_back() {
    let tree = Tree::new(&["a"]);
    let (mut ledger, _) = tree.open();
    ledger.set(&tree.cgroup("a"), KNOB, "5000").unwrap();
    ledger.cgroup_gone(tree.cgroup("a").id());
    assert!(ledger.is_empty());
    assert_eq!(tree.low("a"), "1000");
}

/// Gone is what is not there, or is another cgroup; whatever else keeps us from looking may pass.
#[test]
fn what_cannot_be_looked_up_is_not_gone() {
    let tree = Tree::new(&["in/a", "in/b"]);
    tree.killed(&[("in/a", "5000"), ("in/b", "5000")]);
    let closed = |closed| {
        let mode = if closed { 0o000 } else { 0o755 };
        std::fs::set_permissions(tree.path("in"), PermissionsExt::from_mode(mode)).unwrap();
    };
    let failed = |returned: &[Returned]| {
        returned.len() == 2
            && returned
                .iter()
                .all(|r| matches!(r.back, Back::Failed { .. }))
    };
    obey_permissions();
    closed(true);
    // Neither `reset` nor a start forgets them.
    assert!(failed(
        &reset(&tree.fs, &tree.state(), false).unwrap().returned
    ));
    let (mut ledger, returned) = tree.open();
    assert!(failed(&returned), "{returned:?}");
    assert_eq!((ledger.len(), ledger.retry()), (2, Vec::new()));
    ledger.restore();
    drop(ledger);
    let (mut ledger, returned) = tree.open();
    assert!(failed(&returned), "lost at a clean end: {returned:?}");
    // They come back as soon as they can, and only then does the agent write there.
    closed(false);
    assert_eq!(backs(ledger.retry()), [restored("in/a"), restored("in/b")]);
    assert_eq!(
        (tree.low("in/a"), tree.low("in/b"), ledger.len()),
        ("1000".into(), "1000".into(), 0)
    );
    assert_eq!(
        ledger.set(&tree.cgroup("in/a"), KNOB, "7000").unwrap(),
        Written::Yes
    );
    assert_eq!(ledger.before(tree.cgroup("in/a").id(), KNOB), Some("1000"));
}

/// What the lock or the ledger's file is like is no reason to leave anybody limited.
#[test]
fn a_guard_that_cannot_reset_gives_limits_back_all_the_same() {
    let tree = Tree::new(&["a"]);
    let cgroup = unlimited(&tree, "a");
    let (mut ledger, _) = tree.open();
    ledger.set(&cgroup, DISK, TIGHT).unwrap();
    let journal = std::fs::read(tree.state().join("ledger")).unwrap();
    drop(ledger);
    std::fs::write(tree.state().join("ledger"), journal).unwrap();
    std::fs::write(tree.path("a").join("io.max"), TIGHT).unwrap();
    std::fs::remove_file(tree.state().join("lock")).unwrap();
    std::fs::create_dir(tree.state().join("lock")).unwrap();
    let (state, lock) = (tree.state(), tree.state().join("lock"));
    let (heart, agents) = std::os::unix::net::UnixStream::pair().unwrap();
    drop(agents);
    let mut heard = Vec::new();
    let silence = std::time::Duration::from_secs(60);
    let max = || io_max(&tree, "a");
    guard(
        &tree.fs,
        &state,
        heart,
        silence,
        || unreachable!(),
        |done| {
            heard.push((done.is_ok(), max()));
            // Then it can be had.
            let _ = std::fs::remove_dir(&lock);
        },
    )
    .unwrap();
    assert_eq!(heard, [(true, FREE.to_owned()), (true, FREE.to_owned())]);
    assert!(!tree.state().join("ledger").exists());
}

/// Compaction saves room; where it fails the journal goes on.
#[test]
fn a_ledger_that_cannot_be_rewritten_goes_on() {
    let tree = Tree::new(&["a"]);
    let (mut ledger, _) = tree.open();
    std::fs::create_dir(tree.state().join("ledger.new")).unwrap();
    for n in 0..2500 {
        let low = format!("{}", 2000 + n);
        assert_eq!(
            ledger.set(&tree.cgroup("a"), KNOB, &low).unwrap(),
            Written::Yes
        );
    }
    assert_eq!(ledger.len(), 1);
    assert_eq!(backs(ledger.restore()), [restored("a")]);
    assert_eq!(tree.low("a"), "1000");
}

/// Root may write what permissions forbid; this thread no longer.
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
fn without_a_place_for_the_journal_nothing_is_written() {
    let tree = Tree::new(&["a"]);
    std::fs::write(tree.state(), "a file where the directory should be").unwrap();
    let error = Ledger::open(&tree.fs, &tree.state()).unwrap_err();
    assert!(matches!(error, LedgerError::State { .. }), "{error}");
    assert!(error.to_string().contains("state"), "{error}");
    assert_eq!(tree.low("a"), "1000");
}

#[test]
fn one_ledger_has_one_owner() {
    let tree = Tree::new(&["a"]);
    let (mut first, _) = tree.open();
    first.set(&tree.cgroup("a"), KNOB, "5000").unwrap();
    let busy = |e: LedgerError| matches!(e, LedgerError::Busy(_));
    assert!(busy(Ledger::open(&tree.fs, &tree.state()).unwrap_err()));
    assert!(busy(reset(&tree.fs, &tree.state(), false).unwrap_err()));
    assert!(busy(reset(&tree.fs, &tree.state(), true).unwrap_err()));
    assert_eq!(tree.low("a"), "5000");
    drop(first);
    assert_eq!(tree.low("a"), "1000");
    tree.open();
}

#[test]
fn a_damaged_ledger_is_refused_and_what_is_certain_can_be_had() {
    let tree = Tree::new(&["a", "b", "c"]);
    tree.killed(&[("a", "5000"), ("b", "5000"), ("c", "5000")]);
    let path = tree.state().join("ledger");
    let text = std::fs::read_to_string(&path).unwrap();
    let bad = text.replacen("\"path\":\"b\"", "\"path\":\"B\"", 1);
    assert_ne!(text, bad);
    std::fs::write(&path, &bad).unwrap();
    for error in [
        Ledger::open(&tree.fs, &tree.state()).unwrap_err(),
        reset(&tree.fs, &tree.state(), false).unwrap_err(),
    ] {
        let expected = format!("the ledger {} is damaged at line 3:", path.display());
        assert!(error.to_string().contains(&expected), "{error}");
    }
    assert_eq!(std::fs::read_to_string(&path).unwrap(), bad);
    assert_eq!(
        (tree.low("a"), tree.low("c")),
        ("5000".into(), "5000".into())
    );

    tree.write("c", "3333");
    let foreign = Back::Foreign {
        found: "3333".into(),
    };
    let done = reset(&tree.fs, &tree.state(), true).unwrap();
    let back = [restored("a"), ("c".to_owned(), foreign)];
    assert_eq!(backs(done.returned), back);
    let aside = tree.state().join("ledger.damaged");
    assert_eq!(done.damage, Some(Damage { lines: 1, aside }));
    let lows: Vec<String> = ["a", "b", "c"].iter().map(|n| tree.low(n)).collect();
    assert_eq!(lows, ["1000", "5000", "3333"], "of b nothing is certain");
    let aside = std::fs::read_to_string(tree.state().join("ledger.damaged")).unwrap();
    assert_eq!(aside, bad);
    tree.open();
}

#[test]
fn of_a_ledger_without_an_intact_line_the_loss_is_told() {
    for (text, lines) in [("what\nis\nthis", 3), ("", 1)] {
        let tree = Tree::new(&["a"]);
        tree.killed(&[("a", "5000")]);
        std::fs::write(tree.state().join("ledger"), text).unwrap();
        let done = reset(&tree.fs, &tree.state(), true).unwrap();
        let aside = tree.state().join("ledger.damaged");
        assert_eq!(done.returned, []);
        assert_eq!(done.damage, Some(Damage { lines, aside }));
    }
}

#[test]
fn the_state_is_its_owners_alone() {
    let tree = Tree::new(&["a"]);
    let (_ledger, _) = tree.open();
    let mode = |path: PathBuf| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(tree.state()), 0o700);
    assert_eq!(mode(tree.state().join("ledger")), 0o600);
}

/// Otherwise its `lock` might be a link to a file that is emptied, and its ledger somebody else's word.
#[test]
fn a_state_directory_that_others_may_write_is_refused() {
    let tree = Tree::new(&["a"]);
    std::fs::create_dir(tree.state()).unwrap();
    std::fs::write(tree.dir.path().join("precious"), "1").unwrap();
    std::os::unix::fs::symlink("../precious", tree.state().join("lock")).unwrap();
    std::fs::set_permissions(tree.state(), PermissionsExt::from_mode(0o777)).unwrap();
    let refused = Ledger::open(&tree.fs, &tree.state())
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
fn one_knob_can_be_released_alone() {
    let tree = Tree::new(&["a"]);
    let cgroup = unlimited(&tree, "a");
    let (mut ledger, _) = tree.open();
    assert_eq!(ledger.release(cgroup.id(), DISK), None, "not held");
    ledger.set(&cgroup, DISK, TIGHT).unwrap();
    ledger.set(&cgroup, KNOB, "5000").unwrap();
    assert_eq!(io_max(&tree, "a"), TIGHT);
    assert_eq!(ledger.release(cgroup.id(), DISK), Some(Back::Restored));
    assert_eq!(io_max(&tree, "a"), FREE);
    assert_eq!((ledger.len(), tree.low("a")), (1, "5000".into()));

    ledger.set(&cgroup, DISK, TIGHT).unwrap();
    let theirs = "8:0 rbps=max wbps=777 riops=max wiops=max";
    std::fs::write(tree.path("a").join("io.max"), theirs).unwrap();
    let found = theirs.to_owned();
    assert_eq!(
        ledger.release(cgroup.id(), DISK),
        Some(Back::Foreign { found })
    );
    assert_eq!(io_max(&tree, "a"), theirs);
    assert!(!ledger.may_write(cgroup.id(), DISK), "theirs from now on");
}

#[test]
fn no_limit_on_a_disk_survives_a_kill() {
    let tree = Tree::new(&["a"]);
    let cgroup = unlimited(&tree, "a");
    let (mut ledger, _) = tree.open();
    ledger.set(&cgroup, DISK, TIGHT).unwrap();
    ledger.set(&cgroup, Knob::MemoryHigh, "4096").unwrap();
    let journal = std::fs::read(tree.state().join("ledger")).unwrap();
    drop(ledger);
    // As a killed agent leaves it.
    std::fs::write(tree.state().join("ledger"), journal).unwrap();
    std::fs::write(tree.path("a").join("io.max"), TIGHT).unwrap();
    std::fs::write(tree.path("a").join("memory.high"), "4096").unwrap();
    let (_ledger, returned) = tree.open();
    assert!(returned.iter().all(|r| r.back == Back::Restored) && returned.len() == 2);
    assert_eq!(io_max(&tree, "a"), FREE);
    let high = std::fs::read_to_string(tree.path("a").join("memory.high")).unwrap();
    assert!(high.starts_with("max"), "{high}");
}

/// An agent's ledger with a limit, room and protection of one cgroup.
fn limited(tree: &Tree, cgroup: &Cgroup) -> Ledger {
    let (mut ledger, _) = tree.open();
    ledger.set(cgroup, DISK, TIGHT).unwrap();
    ledger.set(cgroup, Knob::MemoryHigh, "777").unwrap();
    ledger.set(cgroup, KNOB, "5000").unwrap();
    ledger
}

/// What stands in the knobs of [`limited`] when its agent was killed.
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
fn limits_of_a_silent_agent_lapse_and_it_takes_no_offence() {
    let tree = Tree::new(&["a"]);
    let cgroup = unlimited(&tree, "a");
    let mut ledger = limited(&tree, &cgroup);
    let (heart, mut agents) = std::os::unix::net::UnixStream::pair().unwrap();
    let (heard, hears) = std::sync::mpsc::channel();
    let (wakes, woken) = std::sync::mpsc::channel();
    let (fs, state) = (tree.fs.clone(), tree.state());
    let watching = std::thread::spawn(move || {
        let silence = std::time::Duration::from_millis(200);
        let wake = || wakes.send(()).unwrap();
        guard(&fs, &state, heart, silence, wake, |done| {
            heard.send(done.unwrap()).unwrap();
        })
        .unwrap();
    });
    let soon = std::time::Duration::from_secs(10);
    assert_eq!(hears.recv_timeout(soon).unwrap().len(), 2);
    assert_eq!(io_max(&tree, "a"), FREE);
    assert_eq!(tree.low("a"), "5000", "protection throttles nobody");
    // It is woken, and again while it is silent: it may have been anywhere the first time.
    for _ in 0..3 {
        woken.recv_timeout(soon).unwrap();
    }
    assert!(hears.try_recv().is_err(), "limits are given back once");
    // It wakes up, and gives back what it believes to stand.
    std::io::Write::write_all(&mut agents, b".").unwrap();
    assert_eq!(ledger.release(cgroup.id(), DISK), Some(Back::Restored));
    assert!(ledger.may_write(cgroup.id(), DISK));
    ledger.set(&cgroup, DISK, TIGHT).unwrap();
    assert_eq!(hears.recv_timeout(soon).unwrap().len(), 2, "silent again");
    assert_eq!(io_max(&tree, "a"), FREE);
    // It ends in order, and says so: the guard goes, though the ledger is still held.
    std::io::Write::write_all(&mut agents, b"!").unwrap();
    watching.join().unwrap();
    drop((agents, ledger));
}

#[test]
fn the_guard_of_a_killed_agent_resets() {
    let tree = Tree::new(&["a"]);
    let cgroup = unlimited(&tree, "a");
    let ledger = limited(&tree, &cgroup);
    let journal = std::fs::read(tree.state().join("ledger")).unwrap();
    drop(ledger);
    std::fs::write(tree.state().join("ledger"), journal).unwrap();
    left_by_a_kill(&tree);
    // The kernel closes a dying agent's end of the pipe some time before it lets go of the ledger.
    let held = std::fs::File::create(tree.state().join("lock")).unwrap();
    held.lock().unwrap();
    let dying = std::thread::spawn(move || {
        std::thread::sleep(std::time::Duration::from_millis(2000));
        drop(held);
    });
    let (heart, agents) = std::os::unix::net::UnixStream::pair().unwrap();
    drop(agents);
    let mut heard = Vec::new();
    let silence = std::time::Duration::from_secs(60);
    let wake = || unreachable!("a process that is gone is not woken");
    guard(&tree.fs, &tree.state(), heart, silence, wake, |done| {
        let back = done.unwrap();
        assert!(
            back.iter().all(|one| one.back == Back::Restored),
            "{back:?}"
        );
        heard.push((back.len(), dying.is_finished()));
    })
    .unwrap();
    // Limits do not wait for that; the rest does.
    assert_eq!(heard, [(2, false), (3, true)]);
    assert_eq!(io_max(&tree, "a"), FREE);
    assert!(!tree.state().join("ledger").exists());
}
