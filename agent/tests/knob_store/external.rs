//! Knobs that another writer sets.

use super::*;

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
        by: String::new(),
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
    assert_eq!(tree.lows(["a", "b"]), ["5000", "4444"]);
}

/// It cannot be seen here who writes: that may be systemd, which writes a unit's properties again whenever it realizes the
/// unit, or somebody who means it.
#[test]
fn a_reapplied_original_is_overwritten_a_bounded_number_of_times() {
    for (before, again) in [("1000", "1000"), ("1000", "0")] {
        let tree = Tree::new(&["a"]);
        tree.write("a", before);
        let (mut store, _) = tree.open();
        let a = tree.cgroup("a");
        store.set(&a, KNOB, "5000").unwrap();
        for n in 0..3 {
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
            by: String::new(),
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

/// As after a write that took too long.
#[test]
fn a_knob_that_is_given_up_is_restored_and_is_not_external() {
    let tree = Tree::new(&["a", "b"]);
    let (mut store, _) = tree.open();
    let (a, b) = (tree.cgroup("a"), tree.cgroup("b"));
    store.set(&a, KNOB, "5000").unwrap();
    store.set(&b, KNOB, "5000").unwrap();
    tree.write("b", "4444");
    store.give_up(a.id(), KNOB, "too slow");
    store.give_up(b.id(), KNOB, "too slow");
    assert_eq!(tree.lows(["a", "b"]), ["1000", "4444"]);
    assert_eq!(store.set(&a, KNOB, "6000").unwrap(), WriteOutcome::GivenUp);
    let given_up: Vec<_> = store.given_up().collect();
    assert_eq!(given_up, [(a.id(), KNOB, "too slow")]);
    // Another writer had set this one.
    let external: Vec<_> = store.external().collect();
    assert_eq!(external, [(b.id(), KNOB, "4444")]);
    assert!(store.is_empty());
    store.forget_unwritable(KNOB);
    assert!(store.may_write(a.id(), KNOB) && store.may_write(b.id(), KNOB));
}
