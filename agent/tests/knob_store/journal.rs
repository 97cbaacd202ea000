//! A journal that is corrupt or cannot be compacted.

use super::*;
use justitia_common::checksum::crc32;

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
    assert_eq!(done.corruption, Some(moved(&tree, 1)));
    let lows: Vec<String> = ["a", "b", "c"].iter().map(|n| tree.low(n)).collect();
    assert_eq!(lows, ["1000", "5000", "3333"], "the entry of b is corrupt");
    let text = std::fs::read_to_string(tree.state().join("ledger.corrupt")).unwrap();
    assert_eq!(text, bad);
    tree.open();
}

/// The loss of so many lines of a tree's journal, which was moved.
fn moved(tree: &Tree, lines: usize) -> Corruption {
    Corruption {
        lines,
        file: tree.state().join("ledger.corrupt"),
        stays: false,
    }
}

#[test]
fn salvaging_a_journal_without_intact_lines_reports_the_loss() {
    for (text, lines) in [("what\nis\nthis\n", 3), ("", 1)] {
        let tree = Tree::new(&["a"]);
        tree.killed(&[("a", "5000")]);
        std::fs::write(tree.state().join("ledger"), text).unwrap();
        let done = reset(&tree.fs, &tree.state(), true).unwrap();
        assert_eq!(done.restored, []);
        assert_eq!(done.corruption, Some(moved(&tree, lines)));
    }
}

/// As a newer version may leave it, with a kind of knob and a kind of line that this one does not know.
#[test]
fn records_of_a_newer_version_are_kept_and_the_rest_is_restored() {
    let tree = Tree::new(&["a"]);
    let path = tree.state().join("ledger");
    let newer = [
        r#"{"write":{"cgroup":7,"path":"b","knob":"memory-zswap-max","before":"max","ours":"0"}}"#,
        r#"{"charge":{"cgroup":7,"from":9}}"#,
    ];
    let leave = || {
        tree.killed(&[("a", "5000")]);
        let mut text = std::fs::read_to_string(&path).unwrap();
        for json in newer {
            text.push_str(&format!("{:08x} {json}\n", crc32(json.as_bytes())));
        }
        std::fs::write(&path, text).unwrap();
    };
    let kept = || {
        let text = std::fs::read_to_string(&path).unwrap();
        let lines: Vec<&str> = text.lines().skip(1).map(|line| &line[9..]).collect();
        assert_eq!(lines, newer);
        assert_eq!(tree.low("a"), "1000");
    };
    leave();
    let preview = preview_reset(&tree.fs, &tree.state(), false).unwrap();
    assert_eq!((preview.unknown, tree.low("a")), (2, "5000".to_owned()));
    let done = reset(&tree.fs, &tree.state(), false).unwrap();
    assert_eq!((done.unknown, done.corruption), (2, None));
    assert_eq!(outcomes(done.restored), [restored("a")]);
    kept();

    std::fs::remove_file(&path).unwrap();
    leave();
    let (mut store, left) = tree.open();
    assert_eq!(outcomes(left), [restored("a")]);
    store.set(&tree.cgroup("a"), KNOB, "6000").unwrap();
    store.restore_all();
    kept();
}
