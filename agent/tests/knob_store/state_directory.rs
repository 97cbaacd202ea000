//! The state directory: who may use it, and what happens without it.

use super::*;

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

/// On the host and in a container, for instance.
#[test]
fn a_second_agent_with_another_state_directory_is_refused() {
    let tree = Tree::new(&["a"]);
    std::fs::write(tree.path("memory.reclaim"), "").unwrap();
    let (mut first, _) = tree.open();
    first.set(&tree.cgroup("a"), KNOB, "5000").unwrap();
    let other = tree.dir.path().join("other");
    let refused = |error: KnobStoreError| {
        assert!(error.is_busy(), "{error}");
        error.to_string()
    };
    let error = refused(KnobStore::open(&tree.fs, &other).unwrap_err());
    assert!(
        error.starts_with("another agent is running on the cgroups at"),
        "{error}"
    );
    refused(reset(&tree.fs, &other, false).unwrap_err());
    assert_eq!(tree.low("a"), "5000");
    drop(first);
    KnobStore::open(&tree.fs, &other).unwrap();
}

/// The state of a thread of the process 7, of which the kernel says that it holds the tree's locks.
fn holder(tree: &Tree, thread: u32, state: &str, pending: &str) {
    use std::os::unix::fs::MetadataExt;
    let directory = tree.path(&format!("proc/7/task/{thread}"));
    std::fs::create_dir_all(&directory).unwrap();
    let status = format!("State:\t{state}\nSigPnd:\t{pending}\n");
    std::fs::write(directory.join("status"), status).unwrap();
    let locks = [tree.state().join("lock"), tree.path("memory.reclaim")].map(|path| {
        let file = path.metadata().unwrap();
        let (major, minor) = (rustix::fs::major(file.dev()), rustix::fs::minor(file.dev()));
        format!(
            "1: FLOCK  ADVISORY  WRITE 7 {major:02x}:{minor:02x}:{} 0 EOF\n",
            file.ino()
        )
    });
    std::fs::write(tree.path("proc/locks"), locks.concat()).unwrap();
}

/// Its main thread, which writes the knobs, has ended; another one waits in the kernel for memory.
fn holder_is_killed(tree: &Tree) {
    holder(tree, 7, "Z (zombie)", "0000000000000000");
    holder(tree, 8, "D (disk sleep)", "0000000000000100");
}

#[test]
fn what_a_killed_agent_has_left_is_restored_though_it_has_not_ended() {
    let tree = Tree::new(&["a"]);
    std::fs::write(tree.path("memory.reclaim"), "").unwrap();
    let (mut killed, _) = tree.open();
    killed.set(&tree.cgroup("a"), KNOB, "5000").unwrap();
    holder(&tree, 7, "S (sleeping)", "0000000000000000");
    holder(&tree, 8, "D (disk sleep)", "0000000000000100");
    let error = reset(&tree.fs, &tree.state(), false).unwrap_err();
    assert!(matches!(error, KnobStoreError::Busy(_)), "{error}");

    holder_is_killed(&tree);
    let refused = KnobStore::open(&tree.fs, &tree.state()).unwrap_err();
    let told = refused.to_string();
    assert!(
        refused.is_busy() && told.starts_with("the agent of process 7 was killed"),
        "{told}"
    );
    let previewed = preview_reset(&tree.fs, &tree.state(), false).unwrap();
    assert_eq!(outcomes(previewed.restored), [restored("a")]);
    assert_eq!(tree.low("a"), "5000");
    for _ in 0..2 {
        let done = reset(&tree.fs, &tree.state(), false).unwrap();
        assert_eq!(outcomes(done.restored), [restored("a")]);
        assert_eq!(tree.low("a"), "1000");
        assert!(tree.state().join("ledger").exists(), "the next start's");
    }

    let file = tree.state().join("ledger");
    let corrupt = std::fs::read_to_string(&file).unwrap() + "what\n";
    std::fs::write(&file, &corrupt).unwrap();
    tree.write("a", "5000");
    let error = reset(&tree.fs, &tree.state(), false).unwrap_err();
    assert!(error.is_corruption(), "{error}");
    for reset in [preview_reset, reset] {
        let done = reset(&tree.fs, &tree.state(), true).unwrap();
        assert_eq!(outcomes(done.restored), [restored("a")]);
        let (lines, file) = (1, file.clone());
        let loss = Corruption {
            lines,
            file,
            stays: true,
        };
        assert_eq!(done.corruption, Some(loss));
    }
    assert_eq!(tree.low("a"), "1000");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), corrupt);
}

/// It ends while a reset has read its journal and not yet written: an agent that started then would have its knobs set back.
#[test]
fn no_agent_starts_beside_a_reset_of_what_a_killed_one_has_left() {
    use rustix::fs::{CWD, FlockOperation, flock, mkfifoat};
    let tree = Tree::new(&["a"]);
    tree.killed(&[("a", "5000")]);
    std::fs::write(tree.path("memory.reclaim"), "").unwrap();
    let held = [tree.state().join("lock"), tree.path("memory.reclaim")].map(|path| {
        let file = std::fs::File::create(path).unwrap();
        flock(&file, FlockOperation::LockExclusive).unwrap();
        file
    });
    holder_is_killed(&tree);
    let knob = tree.path("a/memory.low");
    std::fs::remove_file(&knob).unwrap();
    mkfifoat(CWD, &knob, 0o600.into()).unwrap();

    let (fs, state) = (tree.fs.clone(), tree.state());
    let resetting = std::thread::spawn(move || reset(&fs, &state, false));
    // Opened once the reset reads the knob, which it does before it writes it.
    let mut value = std::fs::OpenOptions::new().write(true).open(&knob).unwrap();
    drop(held);
    let ledger = tree.state().join("ledger");
    std::fs::rename(&ledger, tree.state().join("aside")).unwrap();
    let refused = KnobStore::open(&tree.fs, &tree.state());
    let again = reset(&tree.fs, &tree.state(), false);
    std::io::Write::write_all(&mut value, b"1000\n").unwrap();
    drop(value);
    let done = resetting.join().unwrap().unwrap();
    assert_eq!(outcomes(done.restored), [restored("a")]);
    let refused = refused.unwrap_err();
    assert!(
        matches!(refused, KnobStoreError::Resetting(_)) && refused.is_busy(),
        "{refused}"
    );
    assert_eq!(again.unwrap(), ResetReport::default(), "nothing is left");
    tree.open();
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
