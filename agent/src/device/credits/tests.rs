//! Which weights count, and what becomes of what stands in a turn that was held up.

use std::path::Path;

use justitia_kernel::io::DevId;
use justitia_kernel::proc::ProcFs;

use super::tree::weights;
use super::*;
use crate::device::Costs;
use crate::device::disk::{Disk, DiskIdentity};
use crate::device::disk_sampler::DiskSampler;
use crate::device::weights::{Controller, Weighted};
use crate::knobs::WriteOutcome;
use crate::knobs::watchdog::LEASE_EXPIRY;
use crate::monitor::AppIoMonitor;
use crate::page_cache::{CgroupTree, MemorySampler, ReclaimFeatures};
use justitia_cgroup_tree::Changes;

const DISK: DevId = DevId { major: 8, minor: 0 };
const LINE: Knob = Knob::IoWeightOn(DISK);

#[test]
fn room_is_for_two_writers_or_more() {
    let [a, b, c] = [1, 2, 3].map(CgroupId);
    let over = |writers| over(HashSet::from([a, b]), &writers);
    assert_eq!(over(HashSet::from([a, b])), HashSet::new());
    assert_eq!(over(HashSet::from([a, c])), HashSet::from([b]));
    for few in [HashSet::from([a]), HashSet::new()] {
        assert_eq!(over(few), HashSet::from([a, b]));
    }
}

#[test]
fn a_steady_split_is_looked_at_seldom() {
    let ago = |seconds| Some(Duration::from_secs(seconds));
    for (direct, restless, expected) in [
        (true, None, PERIOD),
        (true, ago(1), PERIOD),
        (true, ago(3), SELDOM),
        (false, ago(3), PERIOD),
    ] {
        assert_eq!(period(direct, restless), expected, "{direct} {restless:?}");
    }
    // In less than what the watchdog takes for a stop.
    assert!(2 * SELDOM < LEASE_EXPIRY);
}

/// As `--blkio-weight-device` and `IODeviceWeight=` leave it.
#[test]
fn a_weight_of_one_device_counts_on_it() {
    let dir = tempfile::tempdir().unwrap();
    for (name, weights) in [("a", "default 100\n8:0 400\n"), ("b", "default 200\n")] {
        std::fs::create_dir(dir.path().join(name)).unwrap();
        for (file, text) in [
            ("cgroup.controllers", "io memory\n"),
            ("cgroup.events", "populated 1\nfrozen 0\n"),
            ("io.weight", weights),
        ] {
            std::fs::write(dir.path().join(name).join(file), text).unwrap();
        }
    }
    let fs = justitia_kernel::cgroup::CgroupFs::open_fixture(dir.path()).unwrap();
    let mut cgroups = CgroupTree::new(&fs, false, MemorySampler::new);
    let mut changes = Changes::default();
    cgroups.rescan(&[], Instant::now(), &mut changes);
    for (device, ours, expected) in [
        ("8:0", false, [400, 200]),
        ("8:16", false, [100, 200]),
        ("8:0", true, [100, 200]),
    ] {
        let (device, tenants) = (device.parse().unwrap(), changes.added.iter().copied());
        let (tree, nodes) = weights(&cgroups, device, |_| ours, tenants);
        let found = ["a", "b"].map(|name| {
            let mut nodes = nodes.iter();
            let is_it = |id: CgroupId| cgroups.get(id).unwrap().cgroup.path() == Path::new(name);
            let (_, node) = nodes.find(|(id, _)| is_it(**id)).unwrap();
            tree[*node].weight.get()
        });
        assert_eq!(found, expected, "{device}, ours: {ours}");
    }
}

/// A divided disk with a corrected weight and a room of one cgroup, and a watchdog that has heard of us `silent` ago and has given
/// both back.
fn given_back(dir: &Path, silent: Duration) -> (Credits, KnobStore, Cgroup) {
    let root = dir.join("cgroup");
    std::fs::create_dir_all(root.join("a")).unwrap();
    let reset = || {
        for (file, text) in [("io.weight", "default 100\n"), ("memory.high", "max\n")] {
            std::fs::write(root.join("a").join(file), text).unwrap();
        }
    };
    reset();
    let fs = justitia_kernel::cgroup::CgroupFs::open_fixture(&root).unwrap();
    let cgroup = Cgroup::open_at(&fs, Path::new("a")).unwrap();
    let (mut store, _) = KnobStore::open(&fs, &dir.join("state")).unwrap();
    let mut credits = Credits::open(&Config::default(), fs.root());
    // A plain file has the line over its default.
    store.write_knob = |_, _, _| Ok(());
    for (knob, value) in [(LINE, "8:0 200"), (Knob::MemoryHigh, "4096")] {
        let set = store.set(&cgroup, knob, value).unwrap();
        assert_eq!(set, WriteOutcome::Written);
    }
    credits.disks.push(DiskCredits {
        meter: DiskSampler::new(dir),
        io_cost: true,
        latency: false,
        used: None,
        weighted: Some(Weighted::new(Controller::IoCost, DISK)),
        own: None,
        costs: Costs::default(),
        disk: Disk {
            id: DISK,
            name: "sda".to_owned(),
            dir: dir.to_owned(),
            identity: DiskIdentity::Sequence(1),
        },
    });
    credits.highs.insert(cgroup.id(), 4096);
    credits.watchdog = Guarded::of(Watchdog::fake(silent), |_| {
        Err(std::io::Error::other("none"))
    });
    reset();
    (credits, store, cgroup)
}

#[test]
fn a_limit_of_the_operator_is_left() {
    let dir = tempfile::tempdir().unwrap();
    let (mut credits, mut store, cgroup) = given_back(dir.path(), Duration::ZERO);
    credits.let_go(&mut store, LetGo::SwitchedOff);
    let high = dir.path().join("cgroup/a/memory.high");
    let mut ours = |value: &str| {
        std::fs::write(&high, value).unwrap();
        ours_to_write(&mut store, &cgroup, Knob::MemoryHigh, "max")
    };
    assert!(ours("max\n"));
    assert!(!ours("8192\n"));
    assert!(!ours("max\n"), "theirs from then on");
    // Its operator has had us take it.
    std::fs::write(&high, "8192\n").unwrap();
    assert!(store.take(&cgroup, Knob::MemoryHigh).unwrap());
    assert!(ours_to_write(&mut store, &cgroup, Knob::MemoryHigh, "max"));
}

/// Its operator had us take it.
#[test]
fn a_limit_that_was_taken_is_restored_while_nobody_needs_a_room() {
    let dir = tempfile::tempdir().unwrap();
    let (mut credits, mut store, cgroup) = given_back(dir.path(), Duration::ZERO);
    credits.let_go(&mut store, LetGo::SwitchedOff);
    store.write_knob = |cgroup, knob, value| {
        std::fs::write(cgroup.full_path().join(knob.file()), format!("{value}\n")).unwrap();
        Ok(())
    };
    let high = dir.path().join("cgroup/a/memory.high");
    let stands = || std::fs::read_to_string(&high).unwrap();
    std::fs::write(&high, "8192\n").unwrap();
    assert!(store.take(&cgroup, Knob::MemoryHigh).unwrap());
    let ways: [fn(&mut Credits, &mut KnobStore); 2] = [
        |credits, store| credits.release_rooms(store, Instant::now()),
        |credits, store| credits.let_go(store, LetGo::SwitchedOff),
    ];
    for give_back in ways {
        assert_eq!(stands(), "8192\n", "nobody needs it");
        assert!(store.is_empty() && store.is_ours(cgroup.id(), Knob::MemoryHigh));
        assert!(ours_to_write(&mut store, &cgroup, Knob::MemoryHigh, "max"));
        store.set(&cgroup, Knob::MemoryHigh, "4096").unwrap();
        credits.note_high(cgroup.id(), Some(4096), String::new());
        assert_eq!(stands(), "4096\n");
        credits.moved();
        give_back(&mut credits, &mut store);
        assert_eq!(stands(), "8192\n");
        let moved = credits.moved();
        assert!(
            matches!(&moved[..], [one] if one.id == cgroup.id() && one.to.is_none()),
            "{moved:?}"
        );
    }
}

#[test]
fn what_the_watchdog_gave_back_within_a_tick_is_not_external() {
    let dir = tempfile::tempdir().unwrap();
    let (mut credits, mut store, cgroup) = given_back(dir.path(), LEASE_EXPIRY);
    let why = credits.watchdog.check_lease(Instant::now()).unwrap_err();
    assert_eq!(why, LetGo::LeaseExpired);
    credits.let_go(&mut store, why);
    assert!(store.is_empty());
    for knob in [LINE, Knob::MemoryHigh] {
        assert!(store.may_write(cgroup.id(), knob), "{knob}");
    }
    assert!(credits.highs.is_empty());
    assert_eq!(credits.moved().len(), 2);
    // It goes on: the watchdog hears of us, and what stands is trusted again.
    credits.watchdog.heartbeat(Instant::now());
    assert!(credits.watchdog.check_lease(Instant::now()).is_ok());
}

#[test]
fn without_a_watchdog_no_dirty_budget_stays() {
    let dir = tempfile::tempdir().unwrap();
    let (mut credits, mut store, cgroup) = given_back(dir.path(), Duration::ZERO);
    let config = Config::default();
    assert_eq!(credits.keep_guarded(&config, &store), Ok(()));
    // It has ended, and there is no other.
    credits.watchdog = Guarded::new(|_| Err(std::io::Error::other("no more processes")));
    let why = credits.keep_guarded(&config, &store).unwrap_err();
    assert_eq!(why, LetGo::NoWatchdog);
    credits.let_go(&mut store, why);
    assert!(store.is_empty() && credits.highs.is_empty());
    let moved = credits.moved();
    assert!(
        moved
            .iter()
            .all(|m| m.to.is_none() && m.why.contains("none can be started"))
    );
    // It is tried again as soon as somebody is to have one; until then nothing needs one.
    assert!(store.may_write(cgroup.id(), Knob::MemoryHigh));
    assert_eq!(credits.keep_guarded(&config, &store), Ok(()));
    // Nor does what limits nobody: declared weights, say, or what frees slab.
    std::fs::write(dir.path().join("cgroup/vfs_cache_pressure"), "100\n").unwrap();
    let root = credits.root.clone();
    for (cgroup, knob, value) in [
        (&cgroup, Knob::IoWeight, "default 700"),
        (&cgroup, LINE, "8:0 200"),
        (&root, Knob::VfsCachePressure, "200"),
    ] {
        let set = store.set(cgroup, knob, value).unwrap();
        assert_eq!(set, WriteOutcome::Written);
    }
    assert_eq!(credits.keep_guarded(&config, &store), Ok(()));
    store.set(&cgroup, Knob::MemoryHigh, "4096").unwrap();
    let kept = credits.keep_guarded(&config, &store);
    assert_eq!(kept, Err(LetGo::NoWatchdog));
}

/// As systemd does at `daemon-reload`.
#[test]
fn a_room_that_another_has_set_back_is_planned_anew() {
    let dir = tempfile::tempdir().unwrap();
    let (mut credits, store, cgroup) = given_back(dir.path(), Duration::ZERO);
    let mut stands = |value: &str| {
        std::fs::write(dir.path().join("cgroup/a/memory.high"), value).unwrap();
        credits.doubt_rooms(&store);
        credits.highs[&cgroup.id()]
    };
    assert_eq!(stands("4096\n"), 4096);
    assert_eq!(stands("max\n"), 0);
    let writer = |standing| Writer {
        id: cgroup.id(),
        part: 0.5,
        file: 1 << 20,
        dirty: 0,
        other: 0,
        standing,
    };
    let other = Writer {
        id: CgroupId(1),
        ..writer(Some(17 << 20))
    };
    let planned = plan_rooms(&[writer(Some(0)), other], 0);
    assert!(planned.iter().any(|room| room.id == cgroup.id()));
}

/// It is a limit of the tenant from then on.
#[test]
fn a_limit_that_is_written_over_ours_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let (mut credits, mut store, cgroup) = given_back(dir.path(), Duration::ZERO);
    let root = dir.path().join("cgroup");
    for (name, high) in [("a", "8192\n"), ("b", "max\n")] {
        std::fs::create_dir_all(root.join(name)).unwrap();
        for (file, text) in [("cgroup.controllers", "io memory\n"), ("memory.high", high)] {
            std::fs::write(root.join(name).join(file), text).unwrap();
        }
    }
    let fs = justitia_kernel::cgroup::CgroupFs::open_fixture(&root).unwrap();
    let (proc, now) = (ProcFs::open(Path::new("/proc")).unwrap(), Instant::now());
    let (features, config) = (ReclaimFeatures::default(), Config::default());
    let app_io = AppIoMonitor::unavailable("a test");
    let monitor = Monitor::new(&fs, proc, features, &config, app_io, now).unwrap();
    let ids = monitor.cgroups.top_level().to_vec();
    credits.writers = ids.iter().map(|id| (*id, (now, 0.5))).collect();
    let seen: Vec<_> = ids.iter().map(|id| (*id, TenantIo::default())).collect();
    let given = credits.give_room(&monitor, &mut store, &seen, now);
    assert_eq!((given, seen.len()), (Ok(()), 2));
    let moved = credits.moved();
    let of_a = moved.iter().find(|moved| moved.id == cgroup.id());
    assert_eq!(of_a.map(|moved| &moved.to), Some(&None), "{moved:?}");
    assert_eq!(moved.iter().filter(|moved| moved.to.is_some()).count(), 1);
    assert!(!store.may_write(cgroup.id(), Knob::MemoryHigh));
}

#[test]
fn a_room_that_holds_up_the_agent_is_the_last() {
    assert_eq!(held_up(Duration::from_millis(999)), None);
    let why = held_up(Duration::from_millis(1240)).unwrap();
    assert!(why.starts_with("setting it took 1.2 s: "), "{why}");
}
