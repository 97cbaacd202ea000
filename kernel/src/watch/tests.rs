//! On a plain filesystem. `lab/tests/guests` has the real one.

use std::io::Write;
use std::os::unix::ffi::OsStrExt;

use super::*;
use crate::cgroup::CgroupFs;

fn setup() -> (tempfile::TempDir, Cgroup, TreeWatcher) {
    let dir = tempfile::tempdir().unwrap();
    let fs = CgroupFs::open_fixture(dir.path()).unwrap();
    let mut watcher = TreeWatcher::new().unwrap();
    watcher.add(fs.root()).unwrap();
    (dir, fs.root().clone(), watcher)
}

#[test]
fn created_and_removed_children_are_reported() {
    let (dir, root, mut watcher) = setup();
    assert_eq!(watcher.drain().unwrap(), []);
    let name = OsStr::from_bytes(b"a \n\xff");
    std::fs::create_dir(dir.path().join(name)).unwrap();
    let created = WatchEvent::CgroupCreated {
        parent: root.id(),
        name: name.to_owned(),
    };
    assert_eq!(watcher.drain().unwrap(), [created]);
    let child = root.child(name).unwrap();
    watcher.add(&child).unwrap();
    assert_eq!(watcher.watches.len(), 2);
    std::fs::remove_dir(dir.path().join(name)).unwrap();
    let removed = WatchEvent::CgroupRemoved {
        parent: root.id(),
        name: name.to_owned(),
        id: Some(child.id()),
    };
    assert_eq!(watcher.drain().unwrap(), [removed]);
    assert_eq!(watcher.watches.len(), 1);
    assert!(watcher.by_name.is_empty());
}

#[test]
fn writes_and_population() {
    let (dir, root, mut watcher) = setup();
    std::fs::create_dir(dir.path().join("a")).unwrap();
    std::fs::write(dir.path().join("a/memory.low"), "0").unwrap();
    std::fs::write(dir.path().join("a/cgroup.events"), "populated 0\n").unwrap();
    let a = root.child(OsStr::new("a")).unwrap();
    watcher.add(&a).unwrap();
    watcher.drain().unwrap();
    crate::knob::write_raw(&a, crate::knob::Knob::MemoryLow, "4096").unwrap();
    let written = WatchEvent::FileWritten {
        id: a.id(),
        name: "memory.low".into(),
    };
    assert_eq!(watcher.drain().unwrap(), [written]);
    std::fs::write(dir.path().join("a/cgroup.events"), "populated 1\n").unwrap();
    let events = watcher.drain().unwrap();
    assert!(!events.is_empty());
    assert!(
        events
            .iter()
            .all(|event| *event == WatchEvent::PopulatedChanged { id: a.id() })
    );
    watcher.remove(a.id());
    crate::knob::write_raw(&a, crate::knob::Knob::MemoryLow, "8192").unwrap();
    assert_eq!(watcher.drain().unwrap(), []);
    watcher.remove(a.id());
    assert_eq!(watcher.watches.len(), 1);
}

#[test]
fn a_reused_name_replaces_its_former_holder() {
    let (dir, root, mut watcher) = setup();
    let name = OsStr::new("a");
    std::fs::create_dir(dir.path().join(name)).unwrap();
    let former = root.child(name).unwrap();
    watcher.add(&former).unwrap();
    std::fs::remove_dir(dir.path().join(name)).unwrap();
    std::fs::create_dir(dir.path().join(name)).unwrap();
    let present = root.child(name).unwrap();
    watcher.add(&present).unwrap();
    let events = watcher.drain().unwrap();
    // The removal was the former's: the present one stays watched.
    assert!(events.contains(&WatchEvent::CgroupRemoved {
        parent: root.id(),
        name: name.to_owned(),
        id: None
    }));
    assert_eq!(watcher.watches.len(), 2);
    std::fs::create_dir(dir.path().join("a/b")).unwrap();
    let created = WatchEvent::CgroupCreated {
        parent: present.id(),
        name: "b".into(),
    };
    assert_eq!(watcher.drain().unwrap(), [created]);
}

#[test]
fn a_removed_cgroup_cannot_be_watched() {
    let (dir, root, mut watcher) = setup();
    std::fs::create_dir(dir.path().join("a")).unwrap();
    let a = root.child(OsStr::new("a")).unwrap();
    std::fs::remove_dir(dir.path().join("a")).unwrap();
    let result = watcher.add(&a);
    assert!(result.is_err_and(|error| error.is_gone()));
    assert_eq!(watcher.watches.len(), 1);
}

#[test]
fn an_overflow_is_reported() {
    let (dir, root, mut watcher) = setup();
    let limit = std::fs::read_to_string("/proc/sys/fs/inotify/max_queued_events").unwrap();
    let limit: u32 = limit.trim().parse().unwrap();
    let (a, b) = (dir.path().join("a"), dir.path().join("b"));
    let mut files = ["x", "y"].map(|name| std::fs::File::create(dir.path().join(name)).unwrap());
    // In turn, because inotify merges an event with an equal one before it.
    for _ in 0..=limit / 2 {
        for file in &mut files {
            file.write_all(b"1").unwrap();
        }
    }
    std::fs::create_dir(&b).unwrap();
    let mut events = Vec::new();
    while !events.contains(&WatchEvent::Overflow) {
        let more = watcher.drain().unwrap();
        assert!(
            !more.is_empty(),
            "no overflow after {} events",
            events.len()
        );
        events.extend(more);
    }
    let name = OsString::from("b");
    assert!(!events.contains(&WatchEvent::CgroupCreated {
        parent: root.id(),
        name
    }));
    // Later events are reported again.
    while !watcher.drain().unwrap().is_empty() {}
    std::fs::create_dir(&a).unwrap();
    assert_eq!(watcher.drain().unwrap().len(), 1);
}
