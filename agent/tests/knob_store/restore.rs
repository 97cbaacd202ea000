//! Knobs get their original values back, whatever happened to the agent or the cgroup.

use super::*;

#[test]
fn the_original_value_is_restored_after_many_writes() {
    let tree = Tree::new(&["a", "a/b"]);
    tree.write("a/b", "2000");
    let (mut store, returned) = tree.open();
    assert_eq!(returned, []);
    for low in ["5000", "6000", "7000"] {
        for name in ["a", "a/b"] {
            let cgroup = tree.cgroup(name);
            for outcome in [WriteOutcome::Written, WriteOutcome::Unchanged] {
                assert_eq!(store.set(&cgroup, KNOB, low).unwrap(), outcome);
            }
            assert_eq!(tree.low(name), low);
        }
    }
    assert_eq!(original(&store, tree.cgroup("a/b").id()), Some("2000"));
    assert_eq!(store.len(), 2);
    assert_eq!(
        outcomes(store.restore_all()),
        [restored("a"), restored("a/b")]
    );
    assert_eq!(tree.lows(["a", "a/b"]), ["1000", "2000"]);
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
        assert_eq!(
            outcomes(returned),
            [
                restored("a"),
                restored("b"),
                restored("c"),
                ("d".to_owned(), external("3333"))
            ]
        );
        assert_eq!(
            tree.lows(["a", "b", "c", "d"]),
            ["1000", "1000", "1000", "3333"]
        );
        assert_eq!(
            reset(&tree.fs, &tree.state(), false).unwrap(),
            ResetReport::default()
        );
    }
}

#[test]
fn a_setting_of_the_machine_that_a_killed_agent_has_left_is_restored() {
    // As the agent has left it; as somebody has set it since.
    for (found, expected) in [("1000", "0100"), ("0070", "0070")] {
        let tree = Tree::new(&["a"]);
        let file = tree.path("vfs_cache_pressure");
        std::fs::write(&file, "0100").unwrap();
        let (mut store, _) = tree.open();
        let machine = tree.fs.root().clone();
        store.set(&machine, Knob::VfsCachePressure, "1000").unwrap();
        tree.kill(store);
        std::fs::write(&file, found).unwrap();
        tree.open();
        assert_eq!(std::fs::read_to_string(&file).unwrap(), expected);
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
    // Nobody else has set it.
    assert!(!store.may_write(a.id(), KNOB));
    assert_eq!(store.set(&a, KNOB, "6000").unwrap(), WriteOutcome::GivenUp);
    assert_eq!(store.external().count(), 0);
    let given_up: Vec<_> = store.given_up().collect();
    assert!(
        matches!(&given_up[..], [(id, KNOB, why)] if *id == a.id() && why.starts_with("the kernel refused the write: ")),
        "{given_up:?}"
    );
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
    assert_eq!(tree.lows(["a", "b"]), ["1000", "1000"]);
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
    let a = tree.cgroup("in/a");
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
    assert_eq!(store.set(&a, KNOB, "7000").unwrap(), WriteOutcome::Deferred);
    assert!(store.may_write(a.id(), KNOB));
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

#[test]
fn a_preview_of_reset_says_what_that_does_and_changes_nothing() {
    let tree = Tree::new(&["a", "b", "c", "d"]);
    tree.killed(&[("a", "5000"), ("b", "5000"), ("c", "5000"), ("d", "5000")]);
    tree.write("b", "7000");
    std::fs::remove_dir_all(tree.path("c")).unwrap();
    let journal = || std::fs::read(tree.state().join("ledger")).unwrap();
    let before = journal();
    let preview = preview_reset(&tree.fs, &tree.state(), false).unwrap();
    assert_eq!(journal(), before);
    assert_eq!(tree.lows(["a", "b", "d"]), ["5000", "7000", "5000"]);
    assert_eq!(
        outcomes(preview.restored.clone()),
        [
            restored("a"),
            ("b".into(), external("7000")),
            ("c".into(), RestoreOutcome::Gone),
            restored("d"),
        ]
    );
    let done = reset(&tree.fs, &tree.state(), false).unwrap();
    assert_eq!(outcomes(done.restored), outcomes(preview.restored));
    assert_eq!(tree.lows(["a", "b", "d"]), ["1000", "7000", "1000"]);
}

#[test]
fn a_preview_of_reset_refuses_where_that_does() {
    let tree = Tree::new(&["a"]);
    let preview = |salvage| preview_reset(&tree.fs, &tree.state(), salvage);
    assert_eq!(preview(false).unwrap(), ResetReport::default());
    assert!(!tree.state().exists(), "it creates nothing");
    tree.killed(&[("a", "5000")]);
    let running = tree.open();
    assert!(matches!(preview(false), Err(KnobStoreError::Busy(_))));
    drop(running);
    tree.killed(&[("a", "5000")]);
    let path = tree.state().join("ledger");
    let mut text = std::fs::read_to_string(&path).unwrap();
    text.push_str("00000000 {}\n");
    std::fs::write(&path, &text).unwrap();
    assert!(preview(false).unwrap_err().is_corruption());
    let salvaged = preview(true).unwrap();
    assert_eq!(salvaged.corruption.map(|c| c.lines), Some(1));
    assert_eq!(outcomes(salvaged.restored), [restored("a")]);
    assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
    assert!(!tree.state().join("ledger.corrupt").exists());
}

/// A lost `/run`: without the journal our values would pass for an operator's, for good.
#[test]
fn what_is_left_is_known_without_the_journal() {
    for starts in [true, false] {
        let tree = Tree::new(&["a", "b", "c", "d", "e"]);
        let left = |name: &str, low: &str, previous: &str| {
            // As a killed agent has left it; the store's own mark is gone once it has restored the knob.
            let mark = format!(
                r#"{{"knob":"memory-low","original":"1000","applied":["{previous}","{low}"]}}"#
            );
            let marked = tree.cgroup(name).set_mark("memory.low", mark.as_bytes());
            tree.write(name, low);
            marked
        };
        if left("a", "5000", "4000").is_err() {
            return; // Not root, or a file system without such attributes.
        }
        // Killed between the mark and the write.
        left("b", "6000", "5000").unwrap();
        tree.write("b", "5000");
        // Its operator has decided since.
        left("c", "5000", "4000").unwrap();
        tree.write("c", "7000");
        // Nobody has marked it.
        tree.write("d", "5000");
        // What no version of the agent has written.
        tree.write("e", "5000");
        tree.cgroup("e").set_mark("memory.low", b"{}").unwrap();
        let decided = ("c".to_owned(), external("7000"));
        let expected = [restored("a"), restored("b"), decided];
        if starts {
            let (store, done) = tree.open();
            assert_eq!(outcomes(done), expected);
            drop(store);
        } else {
            let previewed = preview_reset(&tree.fs, &tree.state(), false).unwrap();
            assert_eq!(outcomes(previewed.restored), expected);
            let done = reset(&tree.fs, &tree.state(), false).unwrap();
            assert_eq!(outcomes(done.restored), expected);
            assert!(!tree.state().exists());
        }
        let lows = tree.lows(["a", "b", "c", "d", "e"]);
        assert_eq!(lows, ["1000", "1000", "7000", "5000", "5000"]);
        // Once.
        tree.write("a", "5000");
        assert_eq!(tree.open().1, []);
    }
}

#[test]
fn a_cgroup_is_marked_while_its_knob_is_ours() {
    let tree = Tree::new(&["a", "b"]);
    let (mut store, _) = tree.open();
    let marks = || -> Vec<String> {
        let marks = tree.fs.marks().into_iter();
        marks
            .map(|mark| String::from_utf8(mark.value).unwrap())
            .collect()
    };
    store.set(&tree.cgroup("a"), KNOB, "5000").unwrap();
    if marks().is_empty() {
        return; // Not root, or a file system without such attributes.
    }
    store.set(&tree.cgroup("a"), KNOB, "6000").unwrap();
    assert_eq!(
        marks(),
        [r#"{"knob":"memory-low","original":"1000","applied":["5000","6000"]}"#]
    );
    store.set(&tree.cgroup("b"), KNOB, "6000").unwrap();
    assert_eq!(marks().len(), 2);
    // Another writer decides.
    tree.write("b", "7777");
    store.audit(tree.cgroup("b").id(), KNOB).unwrap();
    assert_eq!(marks().len(), 1);
    store.restore(tree.cgroup("a").id(), KNOB);
    assert_eq!(marks().len(), 0);
}
