//! A tenant's I/O to the disks in one interval, as sampled.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use justitia_kernel::Result;
use justitia_kernel::cgroup::{Cgroup, CgroupId, StatFdCache};
use justitia_kernel::io::{DevId, IoStat};
use justitia_share::num::to_f64;

/// What was transferred to and from a device, bytes per second, and in how many requests.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Flow {
    /// Read.
    pub read: f64,
    /// Written.
    pub written: f64,
    /// Requests, reads and writes.
    pub requests: f64,
}

impl Flow {
    /// Both together.
    #[must_use]
    pub fn bytes(&self) -> f64 {
        self.read + self.written
    }
}

/// A tenant's I/O in one interval. Amounts in bytes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TenantIo {
    /// What it transferred, by device, per second.
    pub flows: Vec<(DevId, Flow)>,
    /// The fraction of the time in which any of its tasks waited for I/O, or for memory that writeback has to free first (PSI), or a disk
    /// had requests of it that somebody waits for (probes). Without either, 1 for a tenant with I/O: the disk's own counters tell whether
    /// it is contended.
    pub stalled: f64,
    /// What its applications read and wrote, bytes per second, and what disks did for it beyond that: by mapped files, block
    /// devices and whatever else probes do not see. Without probes, what went through the disk and what became
    /// dirty; that is negative in an interval in which more was written back, and meant for averages.
    pub application: f64,
    /// Dirty pages and pages under writeback.
    pub dirty: u64,
    /// File pages.
    pub file: u64,
    /// Other memory.
    pub other: u64,
}

/// A tenant with fewer dirty bytes is no buffered writer.
pub(super) const DIRTY: u64 = 4 << 20;
/// A tenant that was a buffered writer remains one with this many dirty bytes: its dirty budget may allow no more, and
/// without the budget it would have any number again.
const STILL_DIRTY: u64 = DIRTY / 16;

impl TenantIo {
    /// Whether it uses a disk: it transfers, waits, or has something to write.
    #[must_use]
    pub fn is_active(&self) -> bool {
        let moves = self.flows.iter().any(|(_, flow)| flow.bytes() > 0.0);
        moves || self.stalled > 0.0 || self.dirty >= DIRTY
    }

    /// Whether it is a buffered writer. `was`: whether it was one lately.
    #[must_use]
    pub fn is_buffered_writer(&self, was: bool) -> bool {
        self.dirty >= if was { STILL_DIRTY } else { DIRTY }
    }

    /// What it transferred to and from one device, per second.
    #[must_use]
    pub fn flow(&self, device: DevId) -> Flow {
        self.flows
            .iter()
            .find(|(id, _)| *id == device)
            .map_or(Flow::default(), |(_, flow)| *flow)
    }
}

/// The probes' counters of the tenants' applications.
pub trait AppIoSource {
    /// What a tenant had disks do, as of the last reading of the probes; free of cost. `None` without probes.
    fn disk_activity(&self, id: CgroupId) -> Option<DiskActivity>;
    /// What a tenant's applications did up to now; this reads the probes. `None` without probes.
    fn app_io(&self, id: CgroupId) -> Option<AppIo>;
}

/// What a tenant's applications did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AppIo {
    /// Bytes read and written.
    pub bytes: u64,
    /// Nanoseconds with requests at a disk that somebody waits for; of several cgroups their sum.
    pub outstanding: u64,
}

/// What a tenant had disks do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskActivity {
    /// A number that grows with it.
    pub total: u64,
    /// Whether it grew in the last seconds.
    pub recent: bool,
}

/// So many bytes of dirty pages are something to speak of.
const BUFFERED: u64 = 1 << 20;
/// `memory.stat` costs most to read. A tenant with less than [`BUFFERED`] dirty, whose applications have moved less than
/// that beside the disk, has it read this often.
const MEMORY_PERIOD: Duration = Duration::from_secs(1);

/// Without PSI it is unknown whether a tenant with dirty pages that transfers nothing waits. This is too little to count as
/// waiting, and too much to count as inactive.
const STALL_UNKNOWN: f64 = 0.05;
/// Applications are ahead of the disk by their dirty pages and by so much more, since the sums of dirty pages are up to two seconds old. Where they were not
/// ahead, and the disk does more for a tenant than the probes see, that is its applications' as well.
const AHEAD: f64 = 16.0 * 1048576.0;
/// The files of at most this many tenants stay open between samples.
const MAX_OPEN: usize = 64;

/// Samples tenants. Each [`TenantIo`] covers the time between two samples.
#[derive(Debug, Default)]
pub(super) struct TenantIoSampler {
    last: HashMap<CgroupId, IoSample>,
    files: HashMap<CgroupId, StatFdCache>,
}

/// A tenant's counters at one moment.
#[derive(Debug)]
struct IoSample {
    at: Instant,
    io: Vec<(DevId, IoStat)>,
    /// Time that tasks have waited for I/O (PSI `some`), microseconds; `None` without PSI.
    stalled: Option<u64>,
    application: Option<AppIo>,
    /// Bytes by which its applications are ahead of the disk, which may come to the disk later: what is dirty, and [`AHEAD`].
    ahead: f64,
    memory: MemorySample,
}

/// What `memory.stat`, `memory.current` and `memory.pressure` said at one moment.
#[derive(Clone, Copy, Debug)]
struct MemorySample {
    at: Instant,
    dirty: u64,
    file: u64,
    other: u64,
    /// Time that tasks have waited for memory (PSI `some`), microseconds; `None` without PSI.
    stalled: Option<u64>,
}

impl TenantIoSampler {
    /// Samples a tenant. `application` is what its applications did so far, where known. `None` for the first sample.
    ///
    /// # Errors
    /// If the cgroup's counters cannot be read; it is forgotten then.
    pub(super) fn sample(
        &mut self,
        cgroup: &Cgroup,
        application: Option<AppIo>,
        now: Instant,
    ) -> Result<Option<TenantIo>> {
        let id = cgroup.id();
        let before = self.last.remove(&id);
        let files = match self.files.remove(&id) {
            Some(files) => files,
            None => StatFdCache::open(cgroup)?,
        };
        let mut here = IoSample::read(&files, before.as_ref(), application, now)?;
        if self.files.len() < MAX_OPEN {
            self.files.insert(id, files);
        }
        let interval = before.and_then(|before| between(&before, &mut here));
        self.last.insert(id, here);
        Ok(interval)
    }

    /// Forgets a cgroup; returns its last `io.stat`.
    pub(super) fn remove(&mut self, id: CgroupId) -> Option<Vec<(DevId, IoStat)>> {
        self.files.remove(&id);
        self.last.remove(&id).map(|last| last.io)
    }
}

impl IoSample {
    fn read(
        files: &StatFdCache,
        before: Option<&Self>,
        application: Option<AppIo>,
        at: Instant,
    ) -> Result<Self> {
        let io = files.io_stat()?;
        let memory = match before.filter(|before| before.memory_holds(&io, application, at)) {
            Some(before) => before.memory,
            None => MemorySample::read(files, at)?,
        };
        // Pressure that cannot be read counts as a kernel without PSI.
        let stalled = files.io_pressure().ok().flatten();
        Ok(Self {
            at,
            io,
            stalled: stalled.map(|psi| psi.some.total),
            application,
            ahead: AHEAD,
            memory,
        })
    }

    /// Whether the memory counters still hold, given the later `io` and `application`.
    fn memory_holds(
        &self,
        io: &[(DevId, IoStat)],
        application: Option<AppIo>,
        at: Instant,
    ) -> bool {
        let (Some(then), Some(now)) = (self.application, application) else {
            return false;
        };
        let transferred = |io: &[(DevId, IoStat)]| -> u64 {
            io.iter().map(|(_, stat)| stat.rbytes + stat.wbytes).sum()
        };
        let transferred = transferred(io).saturating_sub(transferred(&self.io));
        let cached = now
            .bytes
            .saturating_sub(then.bytes)
            .saturating_sub(transferred);
        self.memory.dirty < BUFFERED && cached < BUFFERED && at - self.memory.at < MEMORY_PERIOD
    }
}

impl MemorySample {
    fn read(files: &StatFdCache, at: Instant) -> Result<Self> {
        let memory = files.memory_stat()?;
        let file = memory.file_lru();
        let all = files.current().ok().flatten().unwrap_or(0);
        let stalled = files.memory_pressure().ok().flatten();
        Ok(Self {
            at,
            dirty: memory.file_dirty + memory.file_writeback,
            file,
            other: all.saturating_sub(file),
            stalled: stalled.map(|psi| psi.some.total),
        })
    }

    /// The fraction of the time since `before` in which tasks waited for memory; 0 if this is the same sample.
    fn stalled_since(&self, before: &Self) -> f64 {
        let seconds = (self.at - before.at).as_secs_f64();
        if seconds <= 0.0 {
            return 0.0;
        }
        let stalled = before.stalled.zip(self.stalled);
        stalled.map_or(0.0, |(then, now)| {
            to_f64(now.saturating_sub(then)) / 1e6 / seconds
        })
    }
}

fn between(before: &IoSample, here: &mut IoSample) -> Option<TenantIo> {
    let seconds = (here.at - before.at).as_secs_f64();
    if seconds <= 0.0 {
        return None;
    }
    let rate = |now: u64, then: u64| to_f64(now.saturating_sub(then)) / seconds;
    let flows: Vec<(DevId, Flow)> = here
        .io
        .iter()
        .map(|(device, now)| {
            let then = before.io.iter().find(|(id, _)| id == device);
            let then = then.map_or(IoStat::default(), |(_, stat)| *stat);
            let flow = Flow {
                read: rate(now.rbytes, then.rbytes),
                written: rate(now.wbytes, then.wbytes),
                requests: rate(now.rios + now.wios, then.rios + then.wios),
            };
            (*device, flow)
        })
        .collect();
    let moved: f64 = flows.iter().map(|(_, flow)| flow.bytes()).sum();
    let application = before.application.zip(here.application);
    let outstanding = application.map_or(0.0, |(then, now)| {
        rate(now.outstanding, then.outstanding) / 1e9
    });
    let stalled = match (before.stalled, here.stalled) {
        (Some(then), Some(now)) => (rate(now, then) / 1e6)
            .max(here.memory.stalled_since(&before.memory))
            .max(outstanding)
            .min(1.0),
        _ if moved > 0.0 => 1.0,
        _ if here.memory.dirty >= DIRTY => STALL_UNKNOWN,
        _ => 0.0,
    };
    let application = match application {
        Some((then, now)) => {
            let seen = rate(now.bytes, then.bytes);
            let ahead = before.ahead + (seen - moved) * seconds;
            here.ahead = ahead.clamp(0.0, to_f64(here.memory.dirty) + AHEAD);
            seen + (-ahead).max(0.0) / seconds
        }
        None => moved + (to_f64(here.memory.dirty) - to_f64(before.memory.dirty)) / seconds,
    };
    Some(TenantIo {
        flows,
        stalled,
        application,
        dirty: here.memory.dirty,
        file: here.memory.file,
        other: here.memory.other,
    })
}

#[cfg(test)]
mod tests {
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

    const MEMORY: &str = "anon 1000\nfile 9000\ninactive_file 4000\nactive_file 4096\nfile_dirty 2000\nfile_writeback 48\n";

    /// A cgroup without files yet, and where they go.
    fn tenant() -> (tempfile::TempDir, std::path::PathBuf, Cgroup) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        std::fs::create_dir(&path).unwrap();
        let fs = CgroupFs::open_fixture(dir.path(), true).unwrap();
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
            let application = bytes.map(|bytes| AppIo { bytes, outstanding });
            self.sampler.sample(&self.cgroup, application, at).unwrap()
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
}
