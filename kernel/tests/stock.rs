//! The texts that stock kernels print (Debian's 6.1 and 6.12, one tenant that read 64 MiB and
//! wrote 8 MiB), read by the readers that would read them.

use std::path::{Path, PathBuf};

use justitia_kernel::cgroup::{CgroupFs, StatFdCache};
use justitia_kernel::io::{DevId, IoStat};
use justitia_kernel::memory::{Limit, MemoryEvents};
use justitia_kernel::mount::{cgroup_mounts, preferred};
use justitia_kernel::proc::{ProcFs, Zone};
use justitia_kernel::psi::{Psi, PsiResource};

const DISK: DevId = DevId {
    major: 254,
    minor: 0,
};

fn fixture(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures")
        .join(path)
}

#[test]
fn memory_of_a_tenant() {
    for kernel in ["linux-6.1", "linux-6.12"] {
        let dir = fixture(kernel).join("tenant");
        let fs = CgroupFs::open_fixture(&dir).unwrap();
        let c = fs.root();

        let stat = c.memory_stat().unwrap();
        assert_eq!((stat.anon, stat.file), (0, 68_157_440), "{kernel}");
        assert_eq!((stat.inactive_file, stat.active_file), (68_157_440, 0));
        assert_eq!(stat.slab_reclaimable, 385_392);
        assert_eq!(StatFdCache::open(c).unwrap().memory_stat().unwrap(), stat);

        assert!(c.memory_current().unwrap() > stat.file);
    }
}

#[test]
fn limits_pressure_and_controllers_of_a_tenant() {
    for kernel in ["linux-6.1", "linux-6.12"] {
        let fs = CgroupFs::open_fixture(&fixture(kernel).join("tenant")).unwrap();
        let c = fs.root();

        assert_eq!(c.memory_low().unwrap(), Limit::Bytes(0), "{kernel}");
        assert_eq!(c.memory_high().unwrap(), Limit::Bytes(1 << 30));
        assert_eq!(c.memory_events().unwrap(), MemoryEvents::default());
        assert!(c.pressure(PsiResource::Io).unwrap().full.total > 100_000);
        assert_eq!(c.pressure(PsiResource::Memory).unwrap(), Psi::default());
        assert!(c.cpu_usage_usec().unwrap() > 500_000);

        assert!(!c.events().unwrap().populated);
        let controllers: Vec<_> = c.controllers().unwrap().iter().map(str::to_owned).collect();
        assert_eq!(controllers, ["cpu", "io", "memory", "pids"]);
        assert_eq!(c.subtree_control().unwrap().iter().count(), 0);
    }
}

#[test]
fn io_of_a_tenant() {
    for kernel in ["linux-6.1", "linux-6.12"] {
        let fs = CgroupFs::open_fixture(&fixture(kernel).join("tenant")).unwrap();
        let c = fs.root();

        let [(device, io)] = c.io_stat().unwrap()[..] else {
            panic!("{kernel}: one device")
        };
        assert_eq!(device, DISK);
        let expected = IoStat {
            rbytes: 68_157_440,
            wbytes: 8 << 20,
            rios: io.rios,
            wios: 2049,
            cost_usage: io.cost_usage,
        };
        assert_eq!(io, expected);
        assert!((65..=71).contains(&io.rios));
        assert!([349_507, 361_562].contains(&io.cost_usage));

        let weight = c.io_weight().unwrap().unwrap();
        let on_disk = weight.per_device[0];
        let shown = (weight.default.get(), on_disk.0, on_disk.1.get());
        assert_eq!(shown, (200, DISK, 300));
        assert_eq!(c.io_bfq_weight().unwrap().unwrap().default.get(), 500);
        let limits = "254:0 rbps=max wbps=1048576 riops=100 wiops=max";
        assert_eq!(c.io_max().unwrap(), [(DISK, limits.to_owned())]);
    }
}

#[test]
fn the_root() {
    for kernel in ["linux-6.1", "linux-6.12"] {
        let fs = CgroupFs::open_fixture(&fixture(kernel).join("root")).unwrap();
        let stat = fs.root().memory_stat().unwrap();
        assert!(stat.file >= 68_157_440, "{kernel}: {stat:?}");
        let io = fs.root().io_stat().unwrap();
        assert_eq!((io.len(), io[0].0, io[0].1.wios), (1, DISK, 10));
        assert!(fs.root().cpu_usage_usec().unwrap() > 0);
        assert!(fs.root().subtree_control().unwrap().has("memory"));
        assert!(fs.root().memory_current().unwrap_err().is_missing());
        assert_eq!(fs.root().io_weight().unwrap(), None);
    }
}

#[test]
fn the_machine() {
    for (kernel, total, free, low) in [
        ("linux-6.1", 995_356, 223_448, 218 + 13_860),
        ("linux-6.12", 990_068, 221_111, 220 + 13_858),
    ] {
        let proc = ProcFs::open(&fixture(kernel).join("proc")).unwrap();
        let memory = proc.meminfo().unwrap();
        assert_eq!(memory.mem_total, total * 1024, "{kernel}");
        assert_eq!(memory.swap_total, 0);
        let vmstat = proc.vmstat().unwrap();
        assert_eq!(vmstat.nr_free_pages, free);
        assert!(vmstat.nr_inactive_file >= 68_157_440 / 4096);
        let zones = proc.zoneinfo().unwrap();
        let names: Vec<_> = zones.zones.iter().map(|zone| zone.name.as_str()).collect();
        assert_eq!(names, ["DMA", "DMA32"]);
        let sum = |pages: fn(&Zone) -> u64| zones.zones.iter().map(pages).sum::<u64>();
        assert_eq!((sum(|zone| zone.low), sum(|zone| zone.free)), (low, free));
        assert!(sum(|zone| zone.min) < low && low < sum(|zone| zone.high));
        // DMA is kept for those that can use nothing else but for what is above its reserve.
        assert!(zones.zones[0].reserve > 0 && zones.zones[1].reserve == 0);
        let marks = zones.marks();
        assert_eq!(marks.low, low + zones.zones[0].reserve);
        assert_eq!(marks.high - marks.low, sum(|zone| zone.high) - low);

        let mountinfo = std::fs::read(fixture(kernel).join("proc/self_mountinfo")).unwrap();
        let mount = preferred(cgroup_mounts(&mountinfo)).unwrap();
        assert_eq!(mount.path, Path::new("/sys/fs/cgroup"));
        assert!(mount.recursiveprot && mount.whole && !mount.read_only);

        let psi = std::fs::read(fixture(kernel).join("proc/pressure_cpu")).unwrap();
        assert!(Psi::parse(&psi).unwrap().some.avg10 > 3.0);
    }
}
