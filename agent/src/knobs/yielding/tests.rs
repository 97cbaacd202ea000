//! What becomes of knobs that others write, over one cgroup of plain files.

use super::super::put_back::RestoreOutcome;
use super::super::writers::{MANAGER, UNKNOWN};
use super::*;
use justitia_kernel::cgroup::CgroupFs;
use justitia_kernel::error::Operation;
use justitia_kernel::knob::write_raw;
use rustix::io::Errno;
use std::path::{Path, PathBuf};
use std::time::Duration;

const KNOB: Knob = Knob::MemoryLow;

/// A store with one knob that is ours, at 5, and was 1 before.
struct Held {
    dir: tempfile::TempDir,
    store: KnobStore,
    cgroup: Cgroup,
    now: Instant,
}

impl Held {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("cgroup");
        std::fs::create_dir_all(root.join("a")).unwrap();
        std::fs::write(root.join("a/memory.low"), "1\n").unwrap();
        let fs = CgroupFs::open_fixture(&root).unwrap();
        let (mut store, _) = KnobStore::open(&fs, &dir.path().join("state")).unwrap();
        let cgroup = Cgroup::open_at(&fs, Path::new("a")).unwrap();
        store.set(&cgroup, KNOB, "5").unwrap();
        Self {
            dir,
            store,
            cgroup,
            now: Instant::now(),
        }
    }

    fn file(&self) -> PathBuf {
        self.dir.path().join("cgroup/a/memory.low")
    }

    fn stands(&self) -> String {
        let low = std::fs::read_to_string(self.file()).unwrap();
        low.trim().to_owned()
    }

    /// One of this kind writes a value; the store looks.
    fn writes(&mut self, kind: AuthorKind, value: &str) -> Option<WriteOutcome> {
        std::fs::write(self.file(), format!("{value}\n")).unwrap();
        self.store.writers.say(self.cgroup.id(), KNOB, kind);
        self.store.audit(self.cgroup.id(), KNOB).unwrap()
    }

    /// What is taken back so much later.
    fn back(&mut self, seconds: u64) -> Vec<TakenBack> {
        self.now += Duration::from_secs(seconds);
        let cgroup = self.cgroup.clone();
        let now = self.now;
        self.store.take_back(|_| Some(&cgroup), now)
    }

    fn may_write(&self) -> bool {
        self.store.may_write(self.cgroup.id(), KNOB)
    }

    /// The kernel refuses each write from now on.
    fn refuse(&mut self) {
        self.store.write_knob = |cgroup, _, _| {
            let (operation, path) = (Operation::Write, cgroup.full_path());
            let errno = Errno::ROFS;
            Err(justitia_kernel::Error::Io {
                operation,
                path,
                errno,
            })
        };
    }
}

fn is_external(outcome: Option<&WriteOutcome>, kind: AuthorKind) -> bool {
    let name = format!("{kind:?}");
    matches!(outcome, Some(WriteOutcome::External { by, .. }) if *by == name)
}

#[test]
fn what_systemd_applies_again_is_ours_again_and_beyond_that_after_a_pause() {
    let mut held = Held::new();
    for n in 0..MANAGER.times {
        // The value from before us, and then the kernel's default.
        let value = if n < 3 { "1" } else { "0" };
        let found = value.to_owned();
        let outcome = held.writes(AuthorKind::Manager, value);
        assert_eq!(outcome, Some(WriteOutcome::Reapplied { found }), "{n}");
        assert_eq!(held.stands(), "5");
    }
    let outcome = held.writes(AuthorKind::Manager, "0");
    assert!(
        is_external(outcome.as_ref(), AuthorKind::Manager),
        "{outcome:?}"
    );
    assert!(held.back(1).is_empty() && !held.may_write());
    assert_eq!(held.stands(), "0");
    // Not for good.
    let back = held.back(MANAGER.within.as_secs());
    assert_eq!((back.len(), back[0].value.as_str()), (1, "0"));
    assert!(held.may_write());
    held.store.set(&held.cgroup, KNOB, "6").unwrap();
    assert_eq!(held.stands(), "6");
    held.store.restore_all();
    assert_eq!(held.stands(), "0");
}

/// A paused weight was judged twice: when its pause was over, and when it was written, then as nobody knows whose. The
/// fourth such time it was left for good.
#[test]
fn a_declared_weight_is_ours_again_after_each_of_many_pauses() {
    const KNOB: Knob = Knob::IoWeight;
    let mut held = Held::new();
    let file = held.dir.path().join("cgroup/a/io.weight");
    std::fs::write(&file, "default 100\n").unwrap();
    let (cgroup, id) = (held.cgroup.clone(), held.cgroup.id());
    let put = |held: &mut Held| {
        let now = held.now;
        let put = held
            .store
            .put_declared(&cgroup, KNOB, "default 400", true, now);
        put.unwrap()
    };
    assert_eq!(put(&mut held), WriteOutcome::Written);
    for pause in 0..2 * UNKNOWN.times {
        while held.store.may_write(id, KNOB) {
            std::fs::write(&file, "default 100\n").unwrap();
            held.store.writers.say(id, KNOB, AuthorKind::Manager);
            put(&mut held);
        }
        // The store's own clock is a little ahead.
        let back = held.back(MANAGER.within.as_secs() + 1);
        let back: Vec<_> = back.iter().map(|back| back.knob).collect();
        assert_eq!(back, [KNOB], "pause {pause}");
        let stands = std::fs::read_to_string(&file).unwrap();
        assert_eq!(stands.trim(), "default 400", "pause {pause}");
        assert_eq!(put(&mut held), WriteOutcome::Unchanged);
    }
    held.store.restore_all();
    let stands = std::fs::read_to_string(&file).unwrap();
    assert_eq!(stands.trim(), "default 100");
}

#[test]
fn what_could_not_be_restored_is_not_forgotten_as_an_operators() {
    let mut held = Held::new();
    let (id, low) = (held.cgroup.id(), held.file());
    held.refuse();
    held.store.on_cgroup_removed(id);
    assert_eq!(held.store.original_of_left(id, KNOB, "5"), Some("1"));
    held.store.mark_external(id, KNOB, "5");
    assert!(!held.may_write());
    held.store.write_knob = write_raw;
    held.store.retry_restores();
    assert_eq!(std::fs::read_to_string(low).unwrap().trim(), "1");
    assert_eq!(held.store.owned().count(), 0);
}

#[test]
fn what_was_released_stays_so_whoever_writes_it_before_it_is_restored() {
    let mut held = Held::new();
    let (id, cgroup) = (held.cgroup.id(), held.cgroup.clone());
    held.refuse();
    assert_eq!(held.store.release(&cgroup, KNOB).unwrap(), "5");
    held.store.write_knob = write_raw;
    std::fs::write(held.file(), "7\n").unwrap();
    held.store.writers.say(id, KNOB, AuthorKind::Manager);
    held.store.retry_restores();
    assert!(held.store.is_empty());
    held.writes(AuthorKind::Manager, "0");
    assert!(held.back(1).is_empty() && !held.may_write());
    assert_eq!(held.store.external_by(id, KNOB), OPERATOR);
}

#[test]
fn a_new_value_of_systemd_is_a_policy_while_it_stands() {
    for (set_back, value) in [("0", "0"), ("1", "1"), ("5", "1")] {
        let mut held = Held::new();
        let outcome = held.writes(AuthorKind::Manager, "7");
        assert!(is_external(outcome.as_ref(), AuthorKind::Manager));
        assert!(held.back(1).is_empty() && !held.may_write());
        // Another policy, and the same one again.
        for policy in ["8", "8"] {
            held.writes(AuthorKind::Manager, policy);
            assert!(held.back(1).is_empty());
            let found = held.store.found_external(held.cgroup.id(), KNOB);
            assert_eq!(found, Some(policy));
        }
        held.writes(AuthorKind::Manager, set_back);
        let back = held.back(1);
        let [one] = back.as_slice() else {
            panic!("{back:?}");
        };
        assert_eq!((one.found.as_str(), one.value.as_str()), (set_back, value));
        assert_eq!(one.by, "Manager");
        assert!(held.may_write());
        // Until it is needed nothing of ours stands: nobody would give that back.
        assert_eq!(held.stands(), value);
        assert!(held.store.is_empty());
        // What was there before us is restored at the end, however it became ours again.
        held.store.set(&held.cgroup, KNOB, "6").unwrap();
        held.store.restore_all();
        assert_eq!(held.stands(), value);
    }
}

/// Where ours was to be restored, before it was looked at.
#[test]
fn a_policy_is_one_wherever_it_is_found_first() {
    for (kind, comes_back) in [(AuthorKind::Manager, true), (AuthorKind::Other, false)] {
        let mut held = Held::new();
        let id = held.cgroup.id();
        std::fs::write(held.file(), "7\n").unwrap();
        held.store.writers.say(id, KNOB, kind);
        let found = "7".to_owned();
        let outcome = held.store.restore(id, KNOB);
        assert_eq!(outcome, Some(RestoreOutcome::External { found }));
        assert!(!held.may_write());
        held.writes(kind, "0");
        assert_eq!(held.back(1).len(), usize::from(comes_back), "{kind:?}");
        assert_eq!(held.may_write(), comes_back);
    }
}

#[test]
fn what_anybody_else_writes_is_left_for_good() {
    for value in ["0", "1", "7"] {
        let mut held = Held::new();
        let outcome = held.writes(AuthorKind::Other, value);
        assert!(
            is_external(outcome.as_ref(), AuthorKind::Other),
            "{outcome:?}"
        );
        held.writes(AuthorKind::Manager, "0");
        assert!(held.back(1000).is_empty());
        assert!(!held.may_write());
    }
    // Over a policy, too.
    let mut held = Held::new();
    held.writes(AuthorKind::Manager, "7");
    held.writes(AuthorKind::Other, "0");
    assert!(held.back(1).is_empty() && held.back(1000).is_empty());
    assert!(!held.may_write());
}

#[test]
fn who_cannot_be_told_has_a_few_tries_and_then_has_decided() {
    let mut held = Held::new();
    for _ in 0..UNKNOWN.times {
        let outcome = held.writes(AuthorKind::Unknown, "1");
        assert!(matches!(outcome, Some(WriteOutcome::Reapplied { .. })));
    }
    let outcome = held.writes(AuthorKind::Unknown, "1");
    assert!(is_external(outcome.as_ref(), AuthorKind::Unknown));
    assert!(held.back(100_000).is_empty() && !held.may_write());
    let mut held = Held::new();
    let outcome = held.writes(AuthorKind::Unknown, "7");
    assert!(is_external(outcome.as_ref(), AuthorKind::Unknown));
}

/// A write that is found while a value is planned, before its event is handled, is told as any other.
#[test]
fn a_value_that_is_applied_again_is_judged_where_it_is_found_first() {
    let mut held = Held::new();
    std::fs::write(held.file(), "7\n").unwrap();
    held.store
        .writers
        .say(held.cgroup.id(), KNOB, AuthorKind::Manager);
    let outcome = held.store.set(&held.cgroup, KNOB, "6").unwrap();
    assert!(is_external(Some(&outcome), AuthorKind::Manager));
    held.writes(AuthorKind::Manager, "0");
    assert_eq!(held.back(1).len(), 1);
}

#[test]
fn an_operator_releases_and_takes() {
    let mut held = Held::new();
    let (id, cgroup) = (held.cgroup.id(), held.cgroup.clone());
    assert!(!held.store.take(&cgroup, KNOB).unwrap(), "it is ours");
    assert_eq!(held.store.release(&cgroup, KNOB).unwrap(), "1");
    assert!(!held.may_write());
    assert_eq!(held.store.external_by(id, KNOB), OPERATOR);
    assert!(held.back(100_000).is_empty());
    // Whatever stands there then is restored at the end.
    std::fs::write(held.file(), "9\n").unwrap();
    assert!(held.store.take(&cgroup, KNOB).unwrap());
    assert_eq!(held.stands(), "0");
    held.store.set(&cgroup, KNOB, "6").unwrap();
    held.store.restore_all();
    assert_eq!(held.stands(), "9");
    let is_taken = |held: &Held, found| held.store.is_taken(id, KNOB, found);
    assert!(is_taken(&held, "9") && !is_taken(&held, "7"));
    held.store.release(&cgroup, KNOB).unwrap();
    assert!(!is_taken(&held, "9"));
    // What another one has written, and what was given up.
    let mut held = Held::new();
    let cgroup = held.cgroup.clone();
    held.writes(AuthorKind::Other, "7");
    assert!(held.store.take(&cgroup, KNOB).unwrap() && held.may_write());
    held.store.give_up(cgroup.id(), KNOB, "too slow");
    assert!(held.store.take(&cgroup, KNOB).unwrap() && held.may_write());
}
