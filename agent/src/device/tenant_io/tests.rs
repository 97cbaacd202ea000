//! What a sample says of a tenant.

use super::*;
use std::time::Duration;

use justitia_kernel::cgroup::CgroupFs;

#[test]
fn a_buffered_writer_remains_one_with_few_dirty_pages() {
    for (dirty, was, expected) in [
        (8 << 20, false, true),
        (1 << 20, false, false),
        (1 << 20, true, true),
        (4096, true, false),
    ] {
        let io = TenantIo {
            dirty,
            ..TenantIo::default()
        };
        assert_eq!(io.is_buffered_writer(was), expected, "{dirty} {was}");
    }
}

/// One that writes a gigabyte a second elsewhere, and now and then a line here.
#[test]
fn what_a_tenant_does_on_another_disk_is_not_of_this_one() {
    let device = |minor| DevId { major: 8, minor };
    let flow = |written: f64| Flow {
        written,
        ..Flow::default()
    };
    let io = TenantIo {
        flows: vec![(device(0), flow(4096.0)), (device(16), flow(1e9))],
        application: 1e9 + 4096.0,
        dirty: 100 << 20,
        ..TenantIo::default()
    };
    let (application, dirty) = io.part_of(device(0));
    assert!((application - 4096.0).abs() < 1.0, "{application}");
    assert!(dirty < 4096.0, "{dirty}");
    let (application, dirty) = io.part_of(device(16));
    assert!((application / 1e9 - 1.0).abs() < 1e-3, "{application}");
    assert!((dirty / to_f64(io.dirty) - 1.0).abs() < 1e-3, "{dirty}");
    // With one disk all is of that one, as it was sampled.
    let alone = TenantIo {
        flows: vec![(device(0), flow(4096.0))],
        application: -5.0,
        ..io
    };
    let (application, dirty) = alone.part_of(device(0));
    assert!((application + 5.0).abs() < 1e-9 && dirty >= to_f64(alone.dirty));
}

/// The kernel charges a logical volume and its disk for the same bytes.
#[test]
fn a_byte_on_a_logical_volume_counts_once() {
    let mut tenant = Sampled::new();
    let (disk, volume) = (
        DevId { major: 8, minor: 0 },
        DevId {
            major: 253,
            minor: 0,
        },
    );
    tenant.sampler = TenantIoSampler::of(vec![disk]);
    let mut last = None;
    for second in 0..60 {
        let bytes = second * (10 << 20);
        let line = |device: DevId| {
            format!("{device} rbytes={bytes} wbytes=0 rios={second} wios=0 dbytes=0 dios=0\n")
        };
        std::fs::write(tenant.path.join("io.stat"), line(volume) + &line(disk)).unwrap();
        let read = AppIo {
            bytes,
            ..AppIo::default()
        };
        let at = tenant.begin + Duration::from_secs(second);
        last = tenant
            .sampler
            .sample(&tenant.cgroup, Some(read), at)
            .unwrap();
    }
    let io = last.unwrap();
    let rate = to_f64(10_u64 << 20);
    assert!((io.application / rate - 1.0).abs() < 0.01, "{io:?}");
    assert!((io.flow(disk).bytes() / rate - 1.0).abs() < 0.01, "{io:?}");
    assert!(!io.uses(volume));
}

const MEMORY: &str = "anon 1000\nfile 9000\ninactive_file 4000\nactive_file 4096\nfile_dirty 2000\nfile_writeback 48\n";

/// A cgroup without files yet, and where they go.
fn tenant() -> (tempfile::TempDir, std::path::PathBuf, Cgroup) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a");
    std::fs::create_dir(&path).unwrap();
    let fs = CgroupFs::open_fixture(dir.path()).unwrap();
    let cgroup = Cgroup::open_at(&fs, std::path::Path::new("a")).unwrap();
    (dir, path, cgroup)
}

#[test]
fn memory_stalls_count_over_the_time_since_they_were_last_read() {
    let (_dir, path, cgroup) = tenant();
    let write = |file: &str, text: &str| std::fs::write(path.join(file), text).unwrap();
    let waited = |file: &str, total: u64| {
        let line = |kind| format!("{kind} avg10=0.00 avg60=0.00 avg300=0.00 total={total}\n");
        write(file, &(line("some") + &line("full")));
    };
    write("memory.stat", MEMORY);
    write("memory.current", "10000\n");
    write("io.stat", "");
    waited("io.pressure", 0);
    waited("memory.pressure", 0);
    let mut sampler = TenantIoSampler::default();
    let begin = Instant::now();
    let mut stalled = |millis, total| {
        waited("memory.pressure", total);
        let at = begin + Duration::from_millis(millis);
        let interval = sampler.sample(&cgroup, Some(AppIo::default()), at).unwrap();
        interval.map_or(-1.0, |io| io.stalled)
    };
    assert!(stalled(0, 0) < 0.0, "nothing to compare with");
    assert!(stalled(500, 250_000).abs() < 1e-6, "not read again");
    assert!((stalled(1000, 400_000) - 0.4).abs() < 1e-6, "of a second");
    assert!(stalled(1250, 400_000).abs() < 1e-6);
    assert!((stalled(2250, 9_000_000) - 1.0).abs() < 1e-6, "at most");
}

/// Seconds between two samples of a tenant by [`Sampled::got`].
const LOOK: f64 = 0.25;

/// A tenant with all its files, sampled at chosen times.
struct Sampled {
    _dir: tempfile::TempDir,
    path: std::path::PathBuf,
    cgroup: Cgroup,
    sampler: TenantIoSampler,
    begin: Instant,
}

impl Sampled {
    fn new() -> Self {
        let (dir, path, cgroup) = tenant();
        let sampled = Self {
            _dir: dir,
            path,
            cgroup,
            sampler: TenantIoSampler::default(),
            begin: Instant::now(),
        };
        sampled.write("memory.stat", MEMORY);
        sampled.write("memory.current", "10000\n");
        sampled.io("rbytes=0 wbytes=4096 rios=0 wios=1");
        sampled.stalled("memory.pressure", 0);
        sampled.stalled("io.pressure", 100);
        sampled
    }

    fn write(&self, file: &str, text: &str) {
        std::fs::write(self.path.join(file), text).unwrap();
    }

    fn io(&self, text: &str) {
        self.write("io.stat", &format!("8:0 {text} dbytes=0 dios=0\n"));
    }

    fn stalled(&self, file: &str, total: u64) {
        let line = |kind| format!("{kind} avg10=0.00 avg60=0.00 avg300=0.00 total={total}\n");
        self.write(file, &(line("some") + &line("full")));
    }

    fn dirty(&self, bytes: u64) {
        let text = MEMORY.replace("2000", &bytes.to_string());
        self.write("memory.stat", &text);
    }

    fn sample(&mut self, bytes: Option<u64>, millis: u64) -> Option<TenantIo> {
        self.sample_outstanding(bytes, 0, millis)
    }

    fn sample_outstanding(
        &mut self,
        bytes: Option<u64>,
        outstanding: u64,
        millis: u64,
    ) -> Option<TenantIo> {
        let at = self.begin + Duration::from_millis(millis);
        let application = bytes.map(|bytes| AppIo {
            bytes,
            outstanding,
            ..AppIo::default()
        });
        self.sampler.sample(&self.cgroup, application, at).unwrap()
    }

    /// What its applications got since the last sample, bytes, where the probes were read `age` milliseconds ago.
    fn got(&mut self, bytes: u64, age: u64, millis: u64) -> f64 {
        let at = self.begin + Duration::from_millis(millis);
        let read = AppIo {
            bytes,
            age: Duration::from_millis(age),
            ..AppIo::default()
        };
        let io = self.sampler.sample(&self.cgroup, Some(read), at).unwrap();
        io.map_or(0.0, |io| io.application * LOOK)
    }
}

#[test]
fn intervals_of_a_tenant() {
    let mut tenant = Sampled::new();
    assert_eq!(tenant.sample(None, 0), None);
    tenant.io("rbytes=1000 wbytes=8192 rios=2 wios=2");
    tenant.stalled("io.pressure", 250_100);
    let interval = tenant.sample(None, 500).unwrap();
    let flow = interval.flow(DevId { major: 8, minor: 0 });
    assert!((flow.read - 2000.0).abs() < 1e-6 && (flow.written - 8192.0).abs() < 1e-6);
    assert!((interval.stalled - 0.5).abs() < 1e-6);
    let memory = (interval.dirty, interval.file, interval.other);
    assert_eq!(memory, (2048, 8096, 1904));
    assert!((interval.application - (2000.0 + 8192.0)).abs() < 1e-6);
    assert!(tenant.sample(Some(1 << 20), 1000).is_some());
}

#[test]
fn a_device_that_was_not_used_for_a_minute_is_none_of_its_own() {
    let mut tenant = Sampled::new();
    let (sda, sdb) = (
        DevId { major: 8, minor: 0 },
        DevId {
            major: 8,
            minor: 16,
        },
    );
    let used = |tenant: &mut Sampled, millis| {
        let io = tenant.sample(None, millis).unwrap();
        [sda, sdb].map(|device| io.uses(device))
    };
    let write = |tenant: &Sampled, sda: u64| {
        let line = |device: &str, bytes: u64| {
            format!("{device} rbytes={bytes} wbytes=0 rios=1 wios=0 dbytes=0 dios=0\n")
        };
        tenant.write("io.stat", &(line("8:0", sda) + &line("8:16", 4096)));
    };
    write(&tenant, 4096);
    tenant.sample(None, 0);
    assert_eq!(used(&mut tenant, 250), [false, false], "what was before");
    write(&tenant, 8192);
    assert_eq!(used(&mut tenant, 500), [true, false]);
    assert_eq!(used(&mut tenant, 60_000), [true, false]);
    assert_eq!(used(&mut tenant, 61_000), [false, false]);
}

#[test]
fn application_bytes_are_those_of_the_probes_or_else_what_became_dirty() {
    let mut tenant = Sampled::new();
    assert_eq!(tenant.sample(Some(1 << 20), 0), None);
    tenant.dirty(102_000);
    let counted = tenant.sample(Some(2 << 20), 1000).unwrap();
    assert!((counted.application - 1_048_576.0).abs() < 1.0);
    tenant.dirty(52_000);
    let guessed = tenant.sample(None, 2000).unwrap();
    assert!((guessed.application + 50_000.0).abs() < 1.0);
}

#[test]
fn requests_that_somebody_waits_for_count_as_waiting() {
    let mut tenant = Sampled::new();
    assert_eq!(tenant.sample(Some(0), 0), None);
    let waits = |found: Option<TenantIo>| found.unwrap().stalled;
    assert!((waits(tenant.sample_outstanding(Some(0), 400_000_000, 500)) - 0.8).abs() < 1e-6);
    tenant.stalled("io.pressure", 450_100);
    let psi_is_more = tenant.sample_outstanding(Some(0), 500_000_000, 1000);
    assert!((waits(psi_is_more) - 0.9).abs() < 1e-6);
    let of_several = tenant.sample_outstanding(Some(0), 1_700_000_000, 1500);
    assert!((waits(of_several) - 1.0).abs() < 1e-6, "at most");
    assert!(waits(tenant.sample(None, 2000)) < 1e-6, "without probes");
}

#[test]
fn what_disks_do_beyond_what_probes_see_is_the_applications_too() {
    let mut tenant = Sampled::new();
    let io = |read: u64, written: u64| format!("rbytes={read} wbytes={written} rios=1 wios=1");
    const MIB: u64 = 1 << 20;
    // Per second: what the probes see, and what the disk has read and written so far, MiB.
    let cases = [
        ("first", 0, 0, 0, 0.0),
        ("from the cache", 500, 0, 0, 500.0),
        ("written, and dirty", 40, 0, 0, 40.0),
        ("written back, with nothing else", 0, 0, 40, 0.0),
        ("mapped, within what sums may lag", 0, 16, 40, 0.0),
        ("mapped", 0, 46, 40, 30.0),
        ("mapped, and seen", 20, 96, 40, 50.0),
        ("direct", 30, 126, 40, 30.0),
    ];
    let mut seen = 0;
    for (second, (what, moved, read, written, expected)) in (0..).zip(cases) {
        seen += moved * MIB;
        tenant.io(&io(read * MIB, written * MIB));
        tenant.dirty(if what == "written, and dirty" {
            40 * MIB
        } else {
            0
        });
        let found = tenant.sample(Some(seen), second * 1000);
        let found = found.map_or(0.0, |found| found.application / to_f64(MIB));
        assert!((found - expected).abs() < 0.1, "{what}: {found}");
    }
}

/// As of a tenant with many cgroups: each 250 ms the disk's counters are read, and each 400 ms the probes'.
#[test]
fn what_disks_did_since_the_probes_were_read_counts_once() {
    const MIB: u64 = 1 << 20;
    // MiB a second that the probes see, and that they do not.
    for (seen, unseen) in [(200, 0), (200, 50), (0, 200)] {
        let mut tenant = Sampled::new();
        let mut got = 0.0;
        for look in 0..=40 {
            let millis = look * 250;
            let age = millis % 400;
            let moved = (seen + unseen) * MIB * millis / 1000;
            tenant.io(&format!("rbytes={moved} wbytes=0 rios={look} wios=0"));
            got += tenant.got(seen * MIB * (millis - age) / 1000, age, millis);
        }
        let moved = to_f64(10 * (seen + unseen) * MIB);
        let within = if unseen > 0 { AHEAD } else { 0.0 };
        assert!((moved - within - got).abs() < 1.0, "{seen} {unseen}: {got}");
    }
}

/// It has more than 32 cgroups now.
#[test]
fn an_older_reading_of_the_probes_says_nothing_new() {
    let mut tenant = Sampled::new();
    let looks = [
        (0, 0, 0.0),
        (1_000_000, 0, 1e6),
        (900_000, 300, 0.0),
        (2_000_000, 50, 1e6),
    ];
    for (millis, (bytes, age, expected)) in (0..).step_by(250).zip(looks) {
        let got = tenant.got(bytes, age, millis);
        assert!((got - expected).abs() < 1.0, "{millis}: {got}");
    }
}

#[test]
fn memory_stat_is_read_once_a_second_of_a_tenant_with_little_dirty() {
    let mut tenant = Sampled::new();
    tenant.io("rbytes=1000 wbytes=8192 rios=2 wios=2");
    assert_eq!(tenant.sample(None, 0), None);
    let mut dirty = |application, millis, bytes, io: Option<&str>| {
        tenant.dirty(bytes);
        if let Some(io) = io {
            tenant.io(io);
        }
        tenant.sample(application, millis).unwrap().dirty - 48
    };
    let cases = [
        ("two seconds later", Some(0), 2000, 3000, 3000),
        ("little moved", Some(4096), 2250, 4000, 3000),
        ("moved beside the disk", Some(2 << 20), 2500, 5000, 5000),
    ];
    for (name, application, millis, bytes, expected) in cases {
        let found = dirty(application, millis, bytes, None);
        assert_eq!(found, expected, "{name}");
    }
    let io = Some("rbytes=1000 wbytes=9000000 rios=2 wios=2");
    let found = dirty(Some(9 << 20), 2750, 6000, io);
    assert_eq!(found, 5000, "moved by the disk");
    let cases = [
        ("a second later", Some(9 << 20), 3500, 6000),
        ("without probes", None, 3750, 2_000_000),
        ("with probes again", Some(0), 4000, 2_000_001),
        ("much dirty", Some(0), 4250, 2_000_002),
    ];
    for (name, application, millis, bytes) in cases {
        assert_eq!(dirty(application, millis, bytes, None), bytes, "{name}");
    }
}

#[test]
fn counters_that_cannot_be_read_are_an_error() {
    let mut tenant = Sampled::new();
    tenant.write("io.stat", "8:0 rbytes=x\n");
    let at = tenant.begin;
    assert!(tenant.sampler.sample(&tenant.cgroup, None, at).is_err());
    std::fs::remove_file(tenant.path.join("io.stat")).unwrap();
    assert!(tenant.sampler.sample(&tenant.cgroup, None, at).is_err());
}
