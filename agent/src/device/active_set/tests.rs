//! Tenants of plain files.

use std::cell::{Cell, RefCell};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use justitia_cgroup_tree::Changes;
use justitia_kernel::cgroup::CgroupFs;

use super::*;
use crate::page_cache::MemorySampler;

const MEMORY: &str =
    "anon 0\nfile 9000\ninactive_file 4000\nactive_file 4096\nfile_dirty 0\nfile_writeback 0\n";

/// A cgroup, plain files.
fn cgroup(root: &Path, name: &str, controllers: &str) -> PathBuf {
    let path = root.join(name);
    std::fs::create_dir(&path).unwrap();
    let write = |file: &str, text: &str| std::fs::write(path.join(file), text).unwrap();
    write("cgroup.controllers", controllers);
    write("cgroup.events", "populated 1\nfrozen 0\n");
    path
}

fn tree(root: &Path) -> CgroupTree {
    let fs = CgroupFs::open_fixture(root).unwrap();
    let mut cgroups = CgroupTree::new(&fs, false, MemorySampler::new);
    cgroups.rescan(&[], Instant::now(), &mut Changes::default());
    cgroups
}

fn activity((total, recent): (u64, bool)) -> DiskActivity {
    DiskActivity { total, recent }
}

/// Tenants of plain files, one of which the probes have counted.
struct Fixture {
    dir: tempfile::TempDir,
    cgroups: CgroupTree,
    one: CgroupId,
    known: Cell<(u64, bool)>,
    asked: RefCell<Vec<CgroupId>>,
}

impl Fixture {
    /// A hundred tenants.
    fn new() -> Self {
        Self::of(100)
    }

    fn of(tenants: usize) -> Self {
        let dir = tempfile::tempdir().unwrap();
        for number in 0..tenants {
            let path = cgroup(dir.path(), &format!("t{number}"), "io memory\n");
            let write = |file: &str, text: &str| std::fs::write(path.join(file), text).unwrap();
            write("memory.low", "0\n");
            write("memory.stat", MEMORY);
            write("io.stat", "");
        }
        let cgroups = tree(dir.path());
        let path = Path::new("t7");
        let of = |id: &CgroupId| cgroups.get(*id).unwrap().cgroup.path() == path;
        let one = cgroups.breadth_first().into_iter().find(of).unwrap();
        Self {
            dir,
            cgroups,
            one,
            known: Cell::new((0, false)),
            asked: RefCell::default(),
        }
    }

    fn writes(&self, wbytes: u64) {
        let text = format!("8:0 rbytes=0 wbytes={wbytes} rios=0 wios=1 dbytes=0 dios=0\n");
        std::fs::write(self.dir.path().join("t7/io.stat"), text).unwrap();
    }
}

impl AppIoSource for Fixture {
    fn disk_activity(&self, id: CgroupId) -> Option<DiskActivity> {
        Some(activity(if id == self.one {
            self.known.get()
        } else {
            (0, false)
        }))
    }

    fn app_io(&self, id: CgroupId) -> Option<AppIo> {
        self.asked.borrow_mut().push(id);
        Some(read(self.known.get().0))
    }
}

fn read(bytes: u64) -> AppIo {
    AppIo {
        bytes,
        ..AppIo::default()
    }
}

fn ids(samples: &[(CgroupId, TenantIo)]) -> Vec<CgroupId> {
    samples.iter().map(|(id, _)| *id).collect()
}

#[test]
fn inactive_tenants_are_not_sampled_and_active_ones_are() {
    let tenants = Fixture::new();
    let (mut active, begin) = (ActiveSet::default(), Instant::now());
    let mut sample = |seconds: f64| {
        let now = begin + Duration::from_secs_f64(seconds);
        active.sample(&tenants.cgroups, &tenants, now)
    };
    // No tenant is active.
    for second in 0..5_u8 {
        assert_eq!(ids(&sample(f64::from(second))), []);
    }
    assert!(tenants.asked.borrow().is_empty(), "no tenant is sampled");
    // One reads from the disk: it is sampled from then on, between searches as well.
    tenants.known.set((65536, true));
    tenants.writes(65536);
    assert_eq!(ids(&sample(5.0)), [], "the first sample");
    assert_eq!(ids(&sample(5.25)), [tenants.one]);
    assert!(tenants.asked.borrow().iter().all(|id| *id == tenants.one));
    // And no more once it was inactive for long, until it is active again.
    assert_eq!(ids(&sample(15.5)), [tenants.one]);
    assert_eq!(ids(&sample(16.5)), []);
    tenants.known.set((1 << 20, true));
    tenants.writes(1 << 20);
    sample(17.5);
    assert_eq!(ids(&sample(17.75)), [tenants.one]);
}

#[test]
fn io_domains_are_where_the_administrator_divides() {
    let dir = tempfile::tempdir().unwrap();
    let make = |name: &str, controllers: &str| cgroup(dir.path(), name, controllers);
    // One without children; one whose children have no I/O controller; one with a delegated child and another.
    make("plain", "io memory\n");
    make("whole", "io memory\n");
    make("whole/a", "memory\n");
    make("slice", "io memory\n");
    make("slice/plain", "io memory\n");
    let given = make("slice/given", "io memory\n");
    std::fs::set_permissions(&given, std::fs::Permissions::from_mode(0o777)).unwrap();
    make("slice/given/a", "io memory\n");
    make("slice/given/a/b", "io memory\n");
    let cgroups = tree(dir.path());
    let named = |id: &CgroupId| cgroups.get(*id).unwrap().cgroup.path().to_owned();
    let mut units: Vec<PathBuf> = cgroups
        .io_domains()
        .map(|node| node.cgroup.path().to_owned())
        .collect();
    units.sort();
    let expected = ["plain", "slice/given", "slice/plain", "whole"].map(PathBuf::from);
    assert_eq!(units, expected);

    /// Every cgroup has read a page.
    struct Page;
    impl AppIoSource for Page {
        fn disk_activity(&self, _: CgroupId) -> Option<DiskActivity> {
            Some(activity((4096, true)))
        }
        fn app_io(&self, _: CgroupId) -> Option<AppIo> {
            Some(read(4096))
        }
    }
    let of = |id: &&CgroupId| named(id) == Path::new("slice/given");
    let id = *cgroups.breadth_first().iter().find(of).unwrap();
    let node = cgroups.get(id).unwrap();
    assert_eq!(
        disk_activity(&cgroups, &Page, node),
        Some(activity((3 * 4096, true)))
    );
    let found = app_io(&cgroups, &Page, id, Instant::now());
    assert_eq!(found, Some(read(3 * 4096)));
}

/// A delegatee can make as many cgroups as it likes; what it does counts all the same.
#[test]
fn of_many_cgroups_the_last_reading_of_the_probes_counts() {
    const AGE: Duration = Duration::from_millis(150);
    struct Cached;
    impl AppIoSource for Cached {
        fn disk_activity(&self, _: CgroupId) -> Option<DiskActivity> {
            None
        }
        fn app_io(&self, _: CgroupId) -> Option<AppIo> {
            unreachable!("it would be read for each")
        }
        fn app_io_lately(&self, _: CgroupId, _: Instant) -> Option<AppIo> {
            Some(AppIo {
                age: AGE,
                ..read(4096)
            })
        }
    }
    let dir = tempfile::tempdir().unwrap();
    cgroup(dir.path(), "top", "io memory\n");
    for number in 0..MAX_CGROUPS {
        cgroup(dir.path(), &format!("top/{number}"), "memory\n");
    }
    let cgroups = tree(dir.path());
    let top = cgroups.breadth_first()[0];
    let all = u64::try_from(MAX_CGROUPS).unwrap() + 1;
    let found = app_io(&cgroups, &Cached, top, Instant::now()).unwrap();
    assert_eq!((found.bytes, found.age), (all * 4096, AGE));
}

#[test]
fn without_probes_io_stat_shows_active_tenants() {
    struct Blind;
    impl AppIoSource for Blind {
        fn disk_activity(&self, _: CgroupId) -> Option<DiskActivity> {
            None
        }
        fn app_io(&self, _: CgroupId) -> Option<AppIo> {
            None
        }
    }
    let tenants = Fixture::new();
    let (mut active, begin) = (ActiveSet::default(), Instant::now());
    let mut sample = |seconds| {
        let now = begin + Duration::from_secs(seconds);
        ids(&active.sample(&tenants.cgroups, &Blind, now))
    };
    assert_eq!(sample(0), []);
    tenants.writes(4096);
    sample(1);
    assert_eq!(sample(2), [tenants.one]);
}

/// The seconds until a tenant is found that is active from then on.
fn found(tenants: &Fixture, source: &impl AppIoSource, transferred: f64, attributed: f64) -> usize {
    let (mut active, begin) = (ActiveSet::default(), Instant::now());
    let mut sample = |second: usize| {
        let now = begin + Duration::from_secs(second.try_into().unwrap());
        ids(&active.sample(&tenants.cgroups, source, now)) == [tenants.one]
    };
    assert!(!(0..5).any(&mut sample));
    tenants.known.set((4096, true));
    let mut sample = |second: usize| {
        tenants.writes(4096 * u64::try_from(second).unwrap());
        active.note_throughput(transferred, attributed);
        let now = begin + Duration::from_secs(second.try_into().unwrap());
        ids(&active.sample(&tenants.cgroups, source, now)) == [tenants.one]
    };
    (5..1000).find(|second| sample(*second)).unwrap() - 5
}

/// Probes that miss all of it.
struct Missed;

impl AppIoSource for Missed {
    fn disk_activity(&self, _: CgroupId) -> Option<DiskActivity> {
        Some(activity((0, false)))
    }
    fn app_io(&self, _: CgroupId) -> Option<AppIo> {
        Some(read(0))
    }
}

#[test]
fn an_active_tenant_is_found_in_a_second_among_thousands() {
    for number in [100, 3000] {
        let tenants = Fixture::of(number);
        assert!(found(&tenants, &tenants, 1e6, 1e6) <= 1, "of {number}");
    }
}

#[test]
fn io_that_the_probes_miss_is_found_by_reading_few_io_stats_at_a_time() {
    let tenants = Fixture::new();
    let rounds = 100_usize.div_ceil(IO_STATS);
    let alone = found(&tenants, &Missed, 1e6, 1e6);
    assert!((2..=2 * rounds + 1).contains(&alone), "{alone}");
    // Sooner while disks transfer more than is attributed.
    let beside = found(&Fixture::of(1000), &Missed, 1e6, 0.5e6);
    assert!(beside <= 5, "{beside}");
}

#[test]
fn a_tenant_active_before_contention_is_sampled_at_once() {
    let tenants = Fixture::new();
    tenants.known.set((4096, true));
    let (mut active, now) = (ActiveSet::default(), Instant::now());
    active.sample(&tenants.cgroups, &tenants, now);
    let seen = active.sample(&tenants.cgroups, &tenants, now + Duration::from_millis(250));
    assert_eq!(ids(&seen), [tenants.one]);
}
