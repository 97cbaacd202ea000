//! When limits are safe, and what becomes of them in a turn that was held up.

use std::path::Path;

use justitia_kernel::io::DevId;
use justitia_share::credit::{CreditLoop, Limits, Settings};

use super::knobs::{far, unlimited, yield_foreign};
use super::tree::weights;
use super::*;
use crate::device::disk::{Disk, DiskIdentity};
use crate::device::disk_sampler::DiskSampler;
use crate::device::plan::{LimitIntent, LimitReason, io_max};
use crate::knobs::WriteOutcome;
use crate::knobs::watchdog::LEASE_EXPIRY;
use crate::page_cache::{CgroupTree, MemorySampler};
use justitia_cgroup_tree::Changes;

#[test]
fn kernels_on_which_limits_are_safe() {
    for good in ["6.12.117+deb12-cloud-amd64\n", "6.18.0", "7.0"] {
        assert_eq!(allowed_on(good), Ok(()), "{good}");
    }
    for bad in ["6.1.0-23-amd64", "5.15", "", "what"] {
        let why = allowed_on(bad).unwrap_err();
        assert!(why.contains("expected kernel 6.12"), "{why}");
    }
}

#[test]
fn room_is_for_two_writers_or_more() {
    let [a, b, c] = [1, 2, 3].map(CgroupId);
    let highs = HashMap::from([(a, 4096), (b, 4096)]);
    assert_eq!(over(&highs, &HashSet::from([a, b])), []);
    assert_eq!(over(&highs, &HashSet::from([a, c])), [b]);
    for few in [HashSet::from([a]), HashSet::new()] {
        assert_eq!(over(&highs, &few).len(), 2, "{few:?}");
    }
    assert_eq!(over(&HashMap::new(), &HashSet::new()), []);
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

#[test]
fn how_far_a_limit_moves() {
    let reads = |rbps| Limits {
        rbps,
        ..Limits::default()
    };
    let standing = HashMap::from([(CgroupId(1), reads(Some(1000)))]);
    for (id, rbps, expected) in [
        (1, Some(1400), false),
        (1, Some(600), false),
        (1, Some(1410), true),
        (1, None, true),
        (2, Some(1000), true),
    ] {
        let intent = LimitIntent {
            id: CgroupId(id),
            device: "8:0".parse().unwrap(),
            limits: reads(rbps),
            reason: LimitReason::Over,
        };
        assert_eq!(far(&intent, &standing), expected, "{id} {rbps:?}");
    }
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
    let fs = justitia_kernel::cgroup::CgroupFs::open_fixture(dir.path(), true).unwrap();
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

/// Credits with one limit and one room of a cgroup, and a watchdog that has heard of us `silent` ago.
fn limited(dir: &Path, silent: Duration) -> (Credits, KnobStore, Cgroup) {
    let root = dir.join("cgroup");
    std::fs::create_dir_all(root.join("a")).unwrap();
    let device: DevId = "8:0".parse().unwrap();
    std::fs::write(root.join("a/io.max"), unlimited(device)).unwrap();
    std::fs::write(root.join("a/memory.high"), "max").unwrap();
    let fs = justitia_kernel::cgroup::CgroupFs::open_fixture(&root, true).unwrap();
    let cgroup = Cgroup::open_at(&fs, Path::new("a")).unwrap();
    let (mut store, _) = KnobStore::open(&fs, &dir.join("state")).unwrap();
    let mut credits = Credits::open(&Config::default(), fs.root());
    let limits = Limits {
        wbps: Some(1 << 20),
        ..Limits::default()
    };
    let set = store.set(&cgroup, Knob::IoMax(device), &io_max(device, &limits));
    assert_eq!(set.unwrap(), WriteOutcome::Written);
    let set = store.set(&cgroup, Knob::MemoryHigh, "4096");
    assert_eq!(set.unwrap(), WriteOutcome::Written);
    credits.disks.push(DiskCredits {
        meter: DiskSampler::new(dir),
        credits: CreditLoop::new(Settings::default()),
        standing: HashMap::from([(cgroup.id(), limits)]),
        io_cost: false,
        used: None,
        weighted: None,
        disk: Disk {
            id: device,
            name: "sda".to_owned(),
            dir: dir.to_owned(),
            identity: DiskIdentity::Sequence(1),
        },
    });
    credits.highs.insert(cgroup.id(), 4096);
    credits.watchdog = Guarded::of(Watchdog::fake(silent), |_| {
        Err(std::io::Error::other("none"))
    });
    // What the watchdog does.
    std::fs::write(root.join("a/io.max"), unlimited(device)).unwrap();
    std::fs::write(root.join("a/memory.high"), "max").unwrap();
    (credits, store, cgroup)
}

#[test]
fn limits_restored_by_the_watchdog_within_a_tick_are_not_external() {
    let dir = tempfile::tempdir().unwrap();
    let (mut credits, mut store, cgroup) = limited(dir.path(), LEASE_EXPIRY);
    let knob = Knob::IoMax(credits.disks[0].disk.id);
    let (disk, watchdog) = (&mut credits.disks[0], &credits.watchdog);
    assert!(yield_foreign(disk.disk.id, &mut disk.standing, &mut store, watchdog).is_err());
    credits.let_go(&mut store, LetGo::LeaseExpired);
    assert!(store.is_empty());
    for knob in [knob, Knob::MemoryHigh] {
        assert!(store.may_write(cgroup.id(), knob), "{knob}");
    }
    assert!(credits.highs.is_empty() && credits.disks[0].standing.is_empty());
    assert_eq!(credits.moved().len(), 2);
    // It goes on: the watchdog hears of us, and what stands is trusted again.
    credits.watchdog.heartbeat(Instant::now());
    assert!(credits.watchdog.check_lease(Instant::now()).is_ok());
}

#[test]
fn a_limit_set_by_another_writer_while_the_lease_is_valid_is_external() {
    let dir = tempfile::tempdir().unwrap();
    let (mut credits, mut store, cgroup) = limited(dir.path(), Duration::ZERO);
    let device = credits.disks[0].disk.id;
    let knob = Knob::IoMax(device);
    let (disk, watchdog) = (&mut credits.disks[0], &credits.watchdog);
    // What stood there before us decides nothing: as systemd does, it was only applied again.
    assert!(yield_foreign(device, &mut disk.standing, &mut store, watchdog).is_ok());
    assert!(store.may_write(cgroup.id(), knob) && disk.standing.len() == 1);
    let theirs = format!("{device} rbps=max wbps=777 riops=max wiops=max");
    std::fs::write(dir.path().join("cgroup/a/io.max"), theirs).unwrap();
    assert!(yield_foreign(device, &mut disk.standing, &mut store, watchdog).is_ok());
    assert!(!store.may_write(cgroup.id(), knob) && disk.standing.is_empty());
}

#[test]
fn without_a_watchdog_no_limit_stays() {
    let dir = tempfile::tempdir().unwrap();
    let (mut credits, mut store, cgroup) = limited(dir.path(), Duration::ZERO);
    let (config, knob) = (Config::default(), Knob::IoMax(credits.disks[0].disk.id));
    assert_eq!(credits.keep_guarded(&config, &store), Ok(()));
    // It has ended, and there is no other.
    credits.watchdog = Guarded::new(|_| Err(std::io::Error::other("no more processes")));
    let why = credits.keep_guarded(&config, &store).unwrap_err();
    assert_eq!(why, LetGo::NoWatchdog);
    credits.let_go(&mut store, why);
    assert!(store.is_empty() && credits.disks[0].standing.is_empty());
    let moved = credits.moved();
    assert!(
        moved
            .iter()
            .all(|m| m.to.is_none() && m.why.contains("none can be started"))
    );
    // It is tried again as soon as somebody is to be limited; until then nothing needs one.
    assert!(store.may_write(cgroup.id(), knob));
    assert_eq!(credits.keep_guarded(&config, &store), Ok(()));
}

#[test]
fn a_room_that_holds_up_the_agent_is_the_last() {
    assert_eq!(held_up(Duration::from_millis(999)), None);
    let why = held_up(Duration::from_millis(1240)).unwrap();
    assert!(why.starts_with("setting it took 1.2 s: "), "{why}");
}
