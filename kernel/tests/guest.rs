//! Against a real cgroup v2 tree. These change the machine they run on (they make and remove
//! cgroups and reclaim page cache), so they are ignored unless asked for, as root in a throw-away
//! guest that has cgroup v2 at `/sys/fs/cgroup`, the memory and io controllers enabled for the
//! root's children, `sh` and `dd`, and a disk whose name is in `GUEST_DISK` (default `vda`):
//!
//! ```text
//! guest --ignored --test-threads=1
//! ```

#![expect(clippy::unwrap_used, reason = "a test's helpers fail as its tests do")]

use std::collections::HashSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

use justitia_kernel::capabilities::{Capabilities, CapabilityId, Paths, State};
use justitia_kernel::cgroup::{Cgroup, CgroupFs, ReclaimOutcome, StatFdCache};
use justitia_kernel::io::DevId;
use justitia_kernel::knob::{Knob, read_raw, write_raw};
use justitia_kernel::memory::{Limit, MemoryStat};
use justitia_kernel::psi::PsiResource;
use justitia_kernel::watch::{TreeWatcher, WatchEvent};

#[path = "guest/tenant.rs"]
mod tenant;

use tenant::{Tenant, device, wait_for};

#[test]
#[ignore = "changes the machine: for a throw-away guest"]
fn every_reader() {
    let tenant = Tenant::new("readers");
    tenant.fill(32);
    let mut sleeper = tenant.spawn("exec sleep 1000");
    let c = &tenant.cgroup;
    let end = Instant::now() + Duration::from_secs(5);
    while !c.has_other_processes(std::process::id()).unwrap() {
        assert!(Instant::now() < end);
    }
    assert_eq!(c.id().0, std::fs::metadata(&tenant.path).unwrap().ino());
    let stat = c.memory_stat().unwrap();
    memory_readers(c, &stat);
    other_readers(c);
    files_kept_open(c, &stat);
    readers_of_the_root(c, &stat);
    sleeper.kill().unwrap();
    sleeper.wait().unwrap();
}

fn memory_readers(c: &Cgroup, stat: &MemoryStat) {
    assert!(stat.file >= 30 << 20, "{stat:?}");
    assert!(stat.file_lru() >= 30 << 20, "{stat:?}");
    assert!(c.memory_current().unwrap() >= stat.file);
    assert_eq!(c.memory_low().unwrap(), Limit::Bytes(0));
    assert_eq!(c.memory_high().unwrap(), Limit::Max);
    assert_eq!(c.memory_max().unwrap(), Limit::Max);
    assert_eq!(c.memory_events().unwrap().oom_kill, 0);
    assert_eq!(c.memory_events_local().unwrap().high, 0);
    assert!(matches!(c.swap_high_events().unwrap(), None | Some(0)));
}

fn other_readers(c: &Cgroup) {
    for resource in [PsiResource::Cpu, PsiResource::Memory, PsiResource::Io] {
        c.pressure(resource).unwrap();
    }
    assert!(c.cpu_usage_usec().unwrap() > 0);
    let io = c.io_stat().unwrap();
    let (_, disk) = io.iter().find(|(id, _)| *id == device()).unwrap();
    assert!(disk.rbytes >= 32 << 20, "{io:?}");
    assert_eq!(c.io_weight().unwrap().unwrap().default.get(), 100);
    let events = c.events().unwrap();
    assert!(events.populated && !events.frozen);
    assert!(c.controllers().unwrap().has("memory"));
    assert!(!c.subtree_control().unwrap().has("memory"));
    assert!(c.children().unwrap().is_empty());
}

fn files_kept_open(c: &Cgroup, stat: &MemoryStat) {
    let kept = StatFdCache::open(c).unwrap();
    assert!(kept.current().unwrap().unwrap() >= stat.file);
    assert!(kept.memory_stat().unwrap().file >= 30 << 20);
    assert!(
        kept.io_stat()
            .unwrap()
            .iter()
            .any(|(id, _)| *id == device())
    );
    assert!(kept.io_pressure().unwrap().unwrap().some.total > 0);
    assert!(kept.memory_pressure().unwrap().is_some());
}

fn readers_of_the_root(c: &Cgroup, stat: &MemoryStat) {
    let fs = CgroupFs::discover().unwrap();
    assert!(fs.root().memory_stat().unwrap().file >= stat.file);
    assert!(fs.root().cpu_usage_usec().unwrap() > 0);
    assert!(
        fs.root()
            .io_stat()
            .unwrap()
            .iter()
            .any(|(id, _)| *id == device())
    );
    assert!(fs.root().memory_current().unwrap_err().is_missing());
    assert!(fs.root().events().unwrap_err().is_missing());
    let listed = fs.root().child_entries().unwrap();
    assert!(
        listed
            .iter()
            .any(|child| child.name == "readers" && child.id == c.id())
    );
}

#[test]
#[ignore = "changes the machine: for a throw-away guest"]
fn threaded_cgroups_answer() {
    let tenant = Tenant::new("threaded");
    std::fs::create_dir(tenant.path.join("t")).unwrap();
    std::fs::write(tenant.path.join("t/cgroup.type"), "threaded").unwrap();
    let threaded = tenant.cgroup.child(OsStr::new("t")).unwrap();
    assert!(threaded.memory_stat().unwrap_err().is_missing());
    std::fs::remove_dir(tenant.path.join("t")).unwrap();
}

#[test]
#[ignore = "changes the machine: for a throw-away guest"]
fn a_reused_path_is_not_the_old_cgroup() {
    let tenant = Tenant::new("reused \u{e4}");
    let old = tenant.cgroup.clone();
    let kept = StatFdCache::open(&old).unwrap();
    std::fs::remove_dir(&tenant.path).unwrap();
    let read = |cgroup: &Cgroup| cgroup.memory_current();
    assert!(read(&old).unwrap_err().is_gone());
    assert!(kept.current().unwrap_err().is_gone());
    assert!(kept.memory_stat().unwrap_err().is_gone());
    assert!(kept.io_stat().unwrap_err().is_gone());
    assert!(kept.io_pressure().unwrap_err().is_gone());
    assert!(kept.memory_pressure().unwrap_err().is_gone());
    assert!(!old.is_alive());
    std::fs::create_dir(&tenant.path).unwrap();
    assert!(read(&old).unwrap_err().is_gone());
    assert!(write_raw(&old, Knob::MemoryLow, "0").unwrap_err().is_gone());
    assert!(old.reclaim(0, None).unwrap_err().is_gone());
    assert!(old.io_weight().unwrap_err().is_gone());
    assert!(old.children().unwrap_err().is_gone());
    let new = CgroupFs::discover()
        .unwrap()
        .root()
        .child(old.name().unwrap())
        .unwrap();
    assert_ne!(new.id(), old.id());
    read(&new).unwrap();
}

#[test]
#[ignore = "changes the machine: for a throw-away guest"]
fn knobs_are_restored() {
    let tenant = Tenant::new("knobs");
    for (knob, value, reads) in [
        (Knob::MemoryMin, "1048577".to_owned(), "1048576".to_owned()),
        (Knob::MemoryLow, "max".to_owned(), "max".to_owned()),
        (Knob::MemoryHigh, "8388608".to_owned(), "8388608".to_owned()),
        (
            Knob::MemoryMax,
            "16777216".to_owned(),
            "16777216".to_owned(),
        ),
        (
            Knob::IoWeight,
            "default 300".to_owned(),
            "default 300".to_owned(),
        ),
    ] {
        let before = read_raw(&tenant.cgroup, knob).unwrap();
        write_raw(&tenant.cgroup, knob, &value).unwrap();
        assert_eq!(read_raw(&tenant.cgroup, knob).unwrap(), reads);
        write_raw(&tenant.cgroup, knob, &before).unwrap();
        assert_eq!(read_raw(&tenant.cgroup, knob).unwrap(), before);
    }
    // A device that does not exist is no removed cgroup, although both are ENODEV.
    let absent = DevId {
        major: 99,
        minor: 7,
    };
    let error = write_raw(&tenant.cgroup, Knob::IoWeightOn(absent), "99:7 300").unwrap_err();
    assert!(!error.is_gone() && error.errno().is_some(), "{error}");
}

#[test]
#[ignore = "changes the machine: for a throw-away guest"]
fn reclaim_takes_page_cache() {
    let tenant = Tenant::new("reclaimed");
    tenant.fill(64);
    let found = Capabilities::detect(&Paths::default());
    // Detection goes by the release; the kernel itself refuses an argument that it does not know.
    let state = found.state(CapabilityId::ReclaimSwappiness);
    let taken = tenant.cgroup.reclaim(0, Some(0)).is_ok();
    assert_eq!(taken, state == State::Yes, "{state:?}");
    let swappiness = taken.then_some(0);
    let before = tenant.cgroup.memory_stat().unwrap().file;
    assert!(before >= 60 << 20);
    let end = tenant.cgroup.reclaim(16 << 20, swappiness).unwrap();
    let after = tenant.cgroup.memory_stat().unwrap().file;
    println!(
        "reclaim of 16 MiB: {end:?}, {} KiB less",
        (before - after) >> 10
    );
    assert_eq!(end, ReclaimOutcome::Complete);
    assert!(before - after >= 15 << 20 && before - after <= 40 << 20);
    // More than there is.
    assert_eq!(
        tenant.cgroup.reclaim(1 << 30, swappiness).unwrap(),
        ReclaimOutcome::Partial
    );
    if swappiness.is_none() {
        assert!(tenant.cgroup.reclaim(4096, Some(0)).is_err());
    }
}

#[test]
#[ignore = "changes the machine: for a throw-away guest"]
fn the_watcher_reports_the_kernels_events() {
    let tenant = Tenant::new("watched");
    let c = &tenant.cgroup;
    let mut watcher = TreeWatcher::new().unwrap();
    watcher.add(c).unwrap();
    // Inodes that no file descriptor holds are dropped from memory; the watcher's must not be.
    std::fs::write("/proc/sys/vm/drop_caches", "3").unwrap();

    let name = OsStr::from_bytes(b"child \xff");
    std::fs::create_dir(tenant.path.join(name)).unwrap();
    let created = WatchEvent::CgroupCreated {
        parent: c.id(),
        name: name.to_owned(),
    };
    wait_for(&mut watcher, &created);
    let child = c.child(name).unwrap();
    watcher.add(&child).unwrap();

    let changed = WatchEvent::PopulatedChanged { id: c.id() };
    let mut sleeper = tenant.spawn("exec sleep 1000");
    wait_for(&mut watcher, &changed);
    assert!(c.events().unwrap().populated);
    sleeper.kill().unwrap();
    sleeper.wait().unwrap();
    wait_for(&mut watcher, &changed);
    assert!(!c.events().unwrap().populated);

    std::fs::write(tenant.path.join("memory.low"), "1048576").unwrap();
    let written = WatchEvent::FileWritten {
        id: c.id(),
        name: "memory.low".into(),
    };
    wait_for(&mut watcher, &written);

    std::fs::remove_dir(tenant.path.join(name)).unwrap();
    let removed = WatchEvent::CgroupRemoved {
        parent: c.id(),
        name: name.to_owned(),
        id: Some(child.id()),
    };
    wait_for(&mut watcher, &removed);
    assert_eq!(watcher.len(), 1);
}

#[test]
#[ignore = "changes the machine: for a throw-away guest"]
fn a_thousand_cgroups_are_created_and_removed() {
    let tenant = Tenant::new("churn");
    let descriptors = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let before = descriptors();
    let mut watcher = TreeWatcher::new().unwrap();
    watcher.add(&tenant.cgroup).unwrap();
    let path = tenant.path.clone();
    let maker = std::thread::spawn(move || {
        for round in 0..4 {
            let names = (0..250).map(|n| path.join(format!("{round}-{n}")));
            let all: Vec<_> = names
                .inspect(|name| std::fs::create_dir(name).unwrap())
                .collect();
            for name in all {
                std::fs::remove_dir(name).unwrap();
            }
        }
    });
    let (mut made, mut removed, mut read) = (0, 0, 0);
    let mut alive = HashSet::new();
    let end = Instant::now() + Duration::from_secs(60);
    while removed < 1000 {
        assert!(Instant::now() < end, "{made} made, {removed} removed");
        for event in watcher.drain().unwrap() {
            match event {
                WatchEvent::CgroupCreated { name, .. } => {
                    made += 1;
                    let child = match tenant.cgroup.child(&name) {
                        Err(error) => {
                            assert!(error.is_gone(), "{error}");
                            continue;
                        }
                        Ok(child) => child,
                    };
                    if let Err(error) = watcher.add(&child) {
                        assert!(error.is_gone(), "{error}");
                        continue;
                    }
                    alive.insert(child.id());
                    // The files appear after the directory and go before it.
                    match child.events() {
                        Ok(_) => read += 1,
                        Err(error) => assert!(error.is_gone() || error.is_missing(), "{error}"),
                    }
                }
                WatchEvent::CgroupRemoved { id, .. } => {
                    removed += 1;
                    if let Some(id) = id {
                        assert!(alive.remove(&id));
                    }
                }
                WatchEvent::Overflow => panic!("overflow"),
                _ => {}
            }
        }
    }
    maker.join().unwrap();
    println!("{made} made, {removed} removed, {read} read in time");
    assert_eq!((made, alive.len(), watcher.len()), (1000, 0, 1));
    assert!(read > 0);
    drop(watcher);
    assert_eq!(descriptors(), before);
}

#[test]
#[ignore = "changes the machine: for a throw-away guest"]
fn capabilities_of_a_stock_guest() {
    let found = Capabilities::detect(&Paths::default());
    for capability in found.all() {
        println!(
            "{:?} {:?}: {}",
            capability.state, capability.id, capability.reason
        );
    }
    for name in [
        CapabilityId::RootPrivileges,
        CapabilityId::Cgroup2,
        CapabilityId::Cgroup2Writable,
        CapabilityId::MemoryEnabled,
        CapabilityId::IoEnabled,
        CapabilityId::MemoryReclaim,
        CapabilityId::Psi,
        CapabilityId::Numa,
        CapabilityId::Btf,
    ] {
        assert!(found.has(name), "{:?}", found.get(name));
    }
    for support in found.features() {
        println!("{:?}: {:?}", support.feature, support.level);
    }
    assert!(
        Path::new("/sys/fs/cgroup").starts_with(CgroupFs::discover().unwrap().root().full_path())
    );
}
