//! The agent when the system runs out of a resource. Resource limits apply to a whole process, so these tests have a process of
//! their own, and run one at a time.

#![expect(clippy::unwrap_used, reason = "the helpers of tests are tests")]

use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};

use justitia_agent::device::{DiskDiscovery, DiskIdentity, block_devices, disks};
use justitia_agent::knobs::{KnobStore, RestoreOutcome, WriteOutcome, reset};
use justitia_agent::page_cache::ProtectionController;
use justitia_agent::page_cache::reclaim::{OwnLimits, Pressure};
use justitia_agent::page_cache::{CgroupTree, MemorySampler};
use justitia_cgroup_tree::Changes;
use justitia_kernel::Error;
use justitia_kernel::cgroup::{Cgroup, CgroupFs};
use justitia_kernel::knob::Knob;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// One test at a time.
static ALONE: Mutex<()> = Mutex::new(());

const LIMIT: Knob = Knob::MemoryHigh;
const FREE: &str = "max";

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap().trim().to_owned()
}

/// Runs `then` with the resource limit `most` of `what`.
fn with_at_most<T>(what: Resource, most: u64, then: impl FnOnce() -> T) -> T {
    let before = getrlimit(what);
    let lowered = Rlimit {
        current: Some(most),
        ..before
    };
    setrlimit(what, lowered).unwrap();
    let done = then();
    setrlimit(what, before).unwrap();
    done
}

/// A knob store that has set `memory.high` of one cgroup, and the path of that file.
fn limited(dir: &Path) -> (KnobStore, Cgroup, std::path::PathBuf) {
    // Otherwise the kernel kills a process that writes beyond the limit.
    signal_hook::flag::register(
        signal_hook::consts::SIGXFSZ,
        Arc::new(AtomicBool::new(false)),
    )
    .unwrap();
    let max = dir.join("cgroup/a/memory.high");
    std::fs::create_dir_all(dir.join("cgroup/a")).unwrap();
    std::fs::write(&max, FREE).unwrap();
    std::fs::write(dir.join("cgroup/a/memory.low"), "0\n").unwrap();
    let fs = CgroupFs::open_fixture(&dir.join("cgroup")).unwrap();
    let cgroup = Cgroup::open_at(&fs, Path::new("a")).unwrap();
    let (mut store, _) = KnobStore::open(&fs, &dir.join("state")).unwrap();
    assert_eq!(
        store.set(&cgroup, LIMIT, "100").unwrap(),
        WriteOutcome::Written
    );
    (store, cgroup, max)
}

#[test]
fn limits_are_restored_while_the_journal_cannot_grow_and_set_again_later() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let dir = tempfile::tempdir().unwrap();
    let (mut store, cgroup, max) = limited(dir.path());
    let length = std::fs::metadata(dir.path().join("state/ledger"))
        .unwrap()
        .len();
    let refused = with_at_most(Resource::Fsize, length + 10, || {
        let refused = store.set(&cgroup, LIMIT, "200").unwrap_err();
        assert!(
            store.set(&cgroup, Knob::MemoryLow, "4096").is_err(),
            "and nothing new is written"
        );
        refused
    });
    assert!(refused.to_string().contains("File too large"), "{refused}");
    assert_eq!(
        (read(&max).as_str(), store.len()),
        (FREE, 0),
        "the limit would stay"
    );
    assert_eq!(read(&dir.path().join("cgroup/a/memory.low")), "0");
    assert!(
        store
            .write_error()
            .is_some_and(|why| why.contains("File too large"))
    );
    // It is tried again, and the knob is not external.
    assert!(store.may_write(cgroup.id(), LIMIT));
    assert_eq!(
        store.set(&cgroup, LIMIT, "300").unwrap(),
        WriteOutcome::Written
    );
    assert_eq!((read(&max).as_str(), store.write_error()), ("300", None));
    store.restore_all();
    assert_eq!(read(&max), FREE);
}

#[test]
fn without_file_descriptors_a_limit_is_restored_as_soon_as_possible() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let dir = tempfile::tempdir().unwrap();
    let (mut store, cgroup, max) = limited(dir.path());
    with_at_most(Resource::Nofile, 3, || {
        assert!(store.set(&cgroup, LIMIT, "200").is_err());
        let back = store.restore(cgroup.id(), LIMIT);
        assert!(
            matches!(back, Some(RestoreOutcome::Failed { .. })),
            "{back:?}"
        );
        assert_eq!((store.len(), store.retry_restores()), (1, Vec::new()));
        // It is not lost at a clean end either.
        let returned = store.restore_all();
        assert!(matches!(returned[0].outcome, RestoreOutcome::Failed { .. }) && store.len() == 1);
    });
    assert_eq!(read(&max), "100");
    let back = store.retry_restores();
    assert!(
        back.len() == 1 && back[0].outcome == RestoreOutcome::Restored,
        "{back:?}"
    );
    assert_eq!((read(&max).as_str(), store.len()), (FREE, 0));
    assert!(store.may_write(cgroup.id(), LIMIT));
}

/// However few descriptors the next start or a reset has, it restores the limit that a killed agent has left, or leaves the
/// journal that names it.
#[test]
fn without_file_descriptors_no_start_or_reset_forgets_a_limit() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    for start in [true, false] {
        let dir = tempfile::tempdir().unwrap();
        let (mut store, _, max) = limited(dir.path());
        let state = dir.path().join("state");
        let journal = std::fs::read(state.join("ledger")).unwrap();
        store.restore_all();
        drop(store);
        std::fs::write(state.join("ledger"), journal).unwrap();
        std::fs::write(&max, "100").unwrap();
        let fs = CgroupFs::open_fixture(&dir.path().join("cgroup")).unwrap();
        let mut tries = 0;
        while read(&max) != FREE {
            assert!(
                state.join("ledger").exists(),
                "forgotten with {tries} descriptors"
            );
            with_at_most(Resource::Nofile, tries, || {
                if start {
                    drop(KnobStore::open(&fs, &state));
                } else {
                    drop(reset(&fs, &state, false));
                }
            });
            tries += 1;
        }
    }
}

/// Otherwise its limits would go, and what is known of its operator's.
#[test]
fn without_file_descriptors_no_disk_counts_as_gone_or_as_another() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let dir = tempfile::tempdir().unwrap();
    // A disk, and a device that lies on it.
    for (name, number, sequence) in [("sda", "8:0", "7"), ("dm-0", "253:0", "8")] {
        let device = dir.path().join("block").join(name);
        std::fs::create_dir_all(device.join("slaves")).unwrap();
        for (file, text) in [("dev", number), ("size", "2048"), ("diskseq", sequence)] {
            std::fs::write(device.join(file), text).unwrap();
        }
    }
    std::fs::create_dir(dir.path().join("block/dm-0/slaves/sda")).unwrap();
    let mut found = None;
    for descriptors in 0.. {
        let mut discovery = DiskDiscovery::new(dir.path().to_owned());
        let now = std::time::Instant::now();
        let polled = with_at_most(Resource::Nofile, descriptors, || discovery.poll(true, now));
        if let Some(disks) = polled {
            found = Some(disks);
            break;
        }
    }
    // What polls may find that somebody has taken the descriptor since.
    let read = with_at_most(Resource::Nofile, 3, || disks(dir.path()));
    assert_eq!(read, None);
    let listed = with_at_most(Resource::Nofile, 3, || block_devices(dir.path()));
    assert!(listed.is_err(), "{listed:?}");
    let found: Vec<_> = found
        .unwrap()
        .into_iter()
        .map(|disk| (disk.name, disk.identity))
        .collect();
    assert_eq!(found, [("sda".to_owned(), DiskIdentity::Sequence(7))]);
}

/// What could not be read while there were none is found by the next rescan, and nobody loses its weight meanwhile.
#[test]
fn without_file_descriptors_a_weight_stays_and_a_new_cgroup_is_found_later() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let dir = tempfile::tempdir().unwrap();
    let make = |name: &str, weight: u32| {
        let path = dir.path().join(name);
        std::fs::create_dir_all(&path).unwrap();
        for (file, text) in [
            ("cgroup.controllers", "io memory\n".to_owned()),
            ("cgroup.events", "populated 1\nfrozen 0\n".to_owned()),
            ("io.weight", format!("default {weight}\n")),
        ] {
            std::fs::write(path.join(file), text).unwrap();
        }
    };
    make("a", 300);
    let fs = CgroupFs::open_fixture(dir.path()).unwrap();
    let mut tree = CgroupTree::new(&fs, false, MemorySampler::new);
    let now = std::time::Instant::now();
    let weights = |tree: &CgroupTree| {
        let ids = tree.breadth_first().into_iter();
        let nodes = ids.filter_map(|id| tree.get(id));
        let mut weights: Vec<u64> = nodes.map(|node| tree.weight(node).0.get()).collect();
        weights.sort_unstable();
        weights
    };
    tree.rescan(&[], now, &mut Changes::default());
    assert_eq!((weights(&tree), tree.events_lost()), (vec![300], false));

    make("a", 400);
    make("b", 200);
    let late = with_at_most(Resource::Nofile, 3, || {
        tree.process_events(&[], now);
        let late = tree.events_lost();
        tree.rescan(&[], now, &mut Changes::default());
        late && tree.events_lost()
    });
    assert_eq!(weights(&tree), [300]);
    assert!(late, "a rescan is due");
    tree.rescan(&[], now, &mut Changes::default());
    assert_eq!(
        (weights(&tree), tree.events_lost()),
        (vec![200, 400], false)
    );
}

/// Its event is consumed: without another reading the minimum would be forgotten, and written over.
#[test]
fn without_file_descriptors_a_minimum_of_an_operator_is_read_again() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    for (observe, ours) in [(true, false), (false, false), (false, true)] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("cgroup/a");
        std::fs::create_dir_all(&path).unwrap();
        for (file, text) in [
            ("cgroup.controllers", "io memory\n"),
            ("cgroup.events", "populated 1\nfrozen 0\n"),
            ("memory.low", "0\n"),
        ] {
            std::fs::write(path.join(file), text).unwrap();
        }
        let fs = CgroupFs::open_fixture(&dir.path().join("cgroup")).unwrap();
        let mut tree = CgroupTree::new(&fs, false, MemorySampler::new);
        let now = std::time::Instant::now();
        tree.rescan(&[], now, &mut Changes::default());
        let id = tree.top_level()[0];
        let low = Knob::MemoryLow;
        let mut store = KnobStore::open(&fs, &dir.path().join("state")).unwrap().0;
        if ours {
            let cgroup = &tree.get(id).unwrap().cgroup;
            store.set(cgroup, low, "4096").unwrap();
        }
        let mut store = (!observe).then_some(store);
        let mut protection = ProtectionController::default();
        std::fs::write(path.join("memory.low"), "8192\n").unwrap();
        let read = with_at_most(Resource::Nofile, 3, || {
            protection.on_knob_written(store.as_mut(), &tree, id, low)
        });
        assert!(read.as_ref().is_err_and(Error::is_exhausted), "{read:?}");
        let external = store
            .as_ref()
            .and_then(|store| store.found_external(id, low));
        assert_eq!(external, None);
        // As a rescan asks.
        let read = protection.on_knob_written(store.as_mut(), &tree, id, low);
        assert_eq!(read.unwrap(), Some(8192), "observe {observe}, ours {ours}");
    }
}

/// Then nothing is reclaimed: it may wait for memory.
#[test]
fn without_file_descriptors_nothing_is_known_of_pressure() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a");
    std::fs::create_dir(&path).unwrap();
    let line = |kind| format!("{kind} avg10=0.00 avg60=0.00 avg300=0.00 total=0\n");
    std::fs::write(path.join("memory.pressure"), line("some") + &line("full")).unwrap();
    let fs = CgroupFs::open_fixture(dir.path()).unwrap();
    let mut pressure = Pressure {
        cgroup: Cgroup::open_at(&fs, Path::new("a")).unwrap(),
        full_avg10_max: 60.0,
        own_limits: OwnLimits::default(),
    };
    let now = std::time::Instant::now();
    let read = with_at_most(Resource::Nofile, 3, || pressure.thrashing(now));
    assert!(read.as_ref().is_err_and(Error::is_exhausted), "{read:?}");
    assert_eq!(pressure.thrashing(now).unwrap(), None);
    // Without PSI it is not known at all.
    std::fs::remove_file(path.join("memory.pressure")).unwrap();
    assert_eq!(pressure.thrashing(now).unwrap(), None);
}
