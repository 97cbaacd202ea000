//! What each tenant does to the disks, from look to look.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use justitia_kernel::Result;
use justitia_kernel::cgroup::{Cgroup, CgroupId, StatFdCache};
use justitia_kernel::io::{DevId, IoStat};
use justitia_share::credit::{BUFFERED, Flow};
use justitia_share::num::to_f64;

/// A tenant's interval. Amounts in bytes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TenantIo {
    /// What it transferred, by device, per second.
    pub flows: Vec<(DevId, Flow)>,
    /// The part of the time in which any of its tasks waited for I/O, or for memory that writing back must
    /// free first. Where the kernel does not say (no PSI),
    /// a tenant with I/O counts as waiting: the disk's own counters say whether it is contended.
    pub stalled: f64,
    /// What its applications read and wrote, bytes per second. Without the probes, what went through the disk
    /// and what became dirty (below 0 in an interval that wrote more back; meant for averages).
    pub application: f64,
    /// What they wrote, of that; `None` without the probes.
    pub written: Option<f64>,
    /// Dirty pages and pages under writeback.
    pub dirty: u64,
    /// Of those, the ones under writeback: handed to the disk, or to the throttling before it.
    pub writeback: u64,
    /// File pages.
    pub file: u64,
    /// Other memory.
    pub other: u64,
}

/// A tenant has dirty pages to speak of from this on, bytes.
const DIRTY: u64 = 4 << 20;
/// Who writes behind dirty pages goes on doing so with so many: the room of a light one lets it have no more, and without
/// its room it would have as many as it likes.
const STILL_DIRTY: u64 = DIRTY / 16;
/// Whose tasks wait for this part of the time waits.
const WAITS: f64 = 0.3;

impl TenantIo {
    /// Whether it does anything to a disk, or waits, or has anything to write.
    #[must_use]
    pub fn is_active(&self) -> bool {
        let moves = self.flows.iter().any(|(_, flow)| flow.is_some());
        moves || self.stalled > 0.0 || self.dirty >= DIRTY
    }

    /// Whether it writes behind dirty pages and waits; whether it `did` so lately.
    #[must_use]
    pub fn is_throttled_writer(&self, did: bool) -> bool {
        let least = if did { STILL_DIRTY } else { DIRTY };
        self.dirty >= least && self.stalled >= WAITS
    }

    /// What it wrote to all devices, bytes per second; a device upon another counts as two.
    #[must_use]
    pub fn device_write_rate(&self) -> f64 {
        self.flows.iter().map(|(_, flow)| flow.wbytes).sum()
    }

    /// What it did to one device.
    #[must_use]
    pub fn flow(&self, device: DevId) -> Flow {
        self.flows
            .iter()
            .find(|(id, _)| *id == device)
            .map_or(Flow::default(), |(_, flow)| *flow)
    }
}

/// What applications have got so far, by the probes. Amounts in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AppBytes {
    /// What they have read and written.
    pub bytes: u64,
    /// What they have written, of that.
    pub written: u64,
}

impl AppBytes {
    /// Both together.
    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        Self {
            bytes: self.bytes.saturating_add(other.bytes),
            written: self.written.saturating_add(other.written),
        }
    }
}

#[derive(Debug)]
struct Last {
    at: Instant,
    io: Vec<(DevId, IoStat)>,
    /// Tasks' waiting for I/O so far, microseconds; `None` without PSI.
    stalled: Option<u64>,
    application: Option<AppBytes>,
    memory: Memory,
}

/// What `memory.stat`, `memory.current` and `memory.pressure` said at some time.
#[derive(Clone, Copy, Debug)]
struct Memory {
    at: Instant,
    dirty: u64,
    writeback: u64,
    file: u64,
    other: u64,
    /// Tasks' waiting for memory so far, microseconds; `None` without PSI.
    stalled: Option<u64>,
}

/// `memory.stat` is what costs most to ask. Who has less than [`BUFFERED`] dirty, and whose applications have had less than
/// that but through a disk, is asked again after so long.
const AGAIN: Duration = Duration::from_secs(1);

/// Without PSI it is not known whether a tenant with dirty pages that moves nothing waits: too little for waiting, and too
/// much for resting.
const UNKNOWN: f64 = 0.05;
/// The files of so many tenants stay open between looks.
const KEPT: usize = 64;

/// All tenants that are looked at.
#[derive(Debug, Default)]
pub struct TenantIoSampler {
    last: HashMap<CgroupId, Last>,
    files: HashMap<CgroupId, StatFdCache>,
}

impl TenantIoSampler {
    /// Looks at a tenant; `application` is what its applications have got so far, if that is known. `None` at the first look.
    ///
    /// # Errors
    /// If the cgroup's counters cannot be read; it is forgotten then.
    pub fn sample(
        &mut self,
        cgroup: &Cgroup,
        application: Option<AppBytes>,
        now: Instant,
    ) -> Result<Option<TenantIo>> {
        let id = cgroup.id();
        let before = self.last.remove(&id);
        let files = match self.files.remove(&id) {
            Some(files) => files,
            None => StatFdCache::open(cgroup)?,
        };
        let here = Last::read(&files, before.as_ref(), application, now)?;
        if self.files.len() < KEPT {
            self.files.insert(id, files);
        }
        let seen = before.and_then(|before| between(&before, &here));
        self.last.insert(id, here);
        Ok(seen)
    }

    /// Forgets a cgroup; its `io.stat` at the last look.
    pub fn remove(&mut self, id: CgroupId) -> Option<Vec<(DevId, IoStat)>> {
        self.files.remove(&id);
        self.last.remove(&id).map(|last| last.io)
    }
}

impl Last {
    fn read(
        files: &StatFdCache,
        before: Option<&Self>,
        application: Option<AppBytes>,
        at: Instant,
    ) -> Result<Self> {
        let io = files.io_stat()?;
        let memory = match before.filter(|before| before.still(&io, application, at)) {
            Some(before) => before.memory,
            None => Memory::read(files, at)?,
        };
        // Pressure that cannot be read, and none at all, are the same to us.
        let stalled = files.io_pressure().ok().flatten();
        Ok(Self {
            at,
            io,
            stalled: stalled.map(|psi| psi.some.total),
            application,
            memory,
        })
    }

    /// Whether what was said of memory will do, now that `io` and `application` are counted.
    fn still(&self, io: &[(DevId, IoStat)], application: Option<AppBytes>, at: Instant) -> bool {
        let (Some(then), Some(now)) = (self.application, application) else {
            return false;
        };
        let through = |io: &[(DevId, IoStat)]| -> u64 {
            io.iter().map(|(_, stat)| stat.rbytes + stat.wbytes).sum()
        };
        let moved = through(io).saturating_sub(through(&self.io));
        let cached = now.bytes.saturating_sub(then.bytes).saturating_sub(moved);
        self.memory.dirty < BUFFERED && cached < BUFFERED && at - self.memory.at < AGAIN
    }
}

impl Memory {
    fn read(files: &StatFdCache, at: Instant) -> Result<Self> {
        let memory = files.memory_stat()?;
        let file = memory.file_lru();
        let all = files.current().ok().flatten().unwrap_or(0);
        let stalled = files.memory_pressure().ok().flatten();
        Ok(Self {
            at,
            dirty: memory.file_dirty + memory.file_writeback,
            writeback: memory.file_writeback,
            file,
            other: all.saturating_sub(file),
            stalled: stalled.map(|psi| psi.some.total),
        })
    }

    /// The part of the time since `before` in which tasks waited for memory; none if nobody has asked since.
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

fn between(before: &Last, here: &Last) -> Option<TenantIo> {
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
                rbytes: rate(now.rbytes, then.rbytes),
                wbytes: rate(now.wbytes, then.wbytes),
                rios: rate(now.rios, then.rios),
                wios: rate(now.wios, then.wios),
            };
            (*device, flow)
        })
        .collect();
    let moved: f64 = flows.iter().map(|(_, flow)| flow.bytes()).sum();
    let stalled = match (before.stalled, here.stalled) {
        (Some(then), Some(now)) => (rate(now, then) / 1e6)
            .max(here.memory.stalled_since(&before.memory))
            .min(1.0),
        _ if moved > 0.0 => 1.0,
        _ if here.memory.dirty >= DIRTY => UNKNOWN,
        _ => 0.0,
    };
    let counted = before.application.zip(here.application);
    let application = match counted {
        Some((then, now)) => rate(now.bytes, then.bytes),
        None => moved + (to_f64(here.memory.dirty) - to_f64(before.memory.dirty)) / seconds,
    };
    Some(TenantIo {
        flows,
        stalled,
        application,
        written: counted.map(|(then, now)| rate(now.written, then.written)),
        dirty: here.memory.dirty,
        writeback: here.memory.writeback,
        file: here.memory.file,
        other: here.memory.other,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use justitia_kernel::cgroup::CgroupFs;
    use std::time::Duration;

    const MEMORY: &str = "anon 1000\nfile 9000\ninactive_file 4000\nactive_file 4096\nfile_dirty 2000\nfile_writeback 48\n";

    fn got(bytes: u64) -> Option<AppBytes> {
        let written = bytes / 2;
        Some(AppBytes { bytes, written })
    }

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
    fn a_writer_that_has_little_room_is_one_all_the_same() {
        let io = |dirty, stalled| TenantIo {
            dirty,
            stalled,
            ..TenantIo::default()
        };
        for (dirty, stalled, did, expected) in [
            (8 << 20, 1.0, false, true),
            (8 << 20, 0.1, true, false),
            (1 << 20, 1.0, false, false),
            (1 << 20, 1.0, true, true),
            (4096, 1.0, true, false),
        ] {
            let found = io(dirty, stalled).is_throttled_writer(did);
            assert_eq!(found, expected, "{dirty} {stalled} {did}");
        }
    }

    #[test]
    fn waiting_for_memory_counts_over_the_time_since_it_was_asked_last() {
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
        let mut meters = TenantIoSampler::default();
        let begin = Instant::now();
        let mut stalled = |millis, total| {
            waited("memory.pressure", total);
            let at = begin + Duration::from_millis(millis);
            let seen = meters.sample(&cgroup, got(0), at).unwrap();
            seen.map_or(-1.0, |io| io.stalled)
        };
        assert!(stalled(0, 0) < 0.0, "nothing to compare with");
        assert!(stalled(500, 250_000).abs() < 1e-6, "not asked");
        assert!((stalled(1000, 400_000) - 0.4).abs() < 1e-6, "of a second");
        assert!(stalled(1250, 400_000).abs() < 1e-6);
        assert!((stalled(2250, 9_000_000) - 1.0).abs() < 1e-6, "at most");
    }

    #[test]
    fn intervals_of_a_tenant() {
        let (_dir, path, cgroup) = tenant();
        let write = |file: &str, text: &str| std::fs::write(path.join(file), text).unwrap();
        write("memory.stat", MEMORY);
        write("memory.current", "10000\n");
        write(
            "io.stat",
            "8:0 rbytes=0 wbytes=4096 rios=0 wios=1 dbytes=0 dios=0\n",
        );
        write(
            "memory.pressure",
            "some avg10=0.00 avg60=0.00 avg300=0.00 total=0\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n",
        );
        write(
            "io.pressure",
            "some avg10=0.00 avg60=0.00 avg300=0.00 total=100\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n",
        );
        let mut meters = TenantIoSampler::default();
        let begin = Instant::now();
        assert_eq!(meters.sample(&cgroup, None, begin).unwrap(), None);
        write(
            "io.stat",
            "8:0 rbytes=1000 wbytes=8192 rios=2 wios=2 dbytes=0 dios=0\n",
        );
        write(
            "io.pressure",
            "some avg10=0.00 avg60=0.00 avg300=0.00 total=250100\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n",
        );
        let seen = meters
            .sample(&cgroup, None, begin + Duration::from_millis(500))
            .unwrap()
            .unwrap();
        let flow = seen.flow(DevId { major: 8, minor: 0 });
        assert!((flow.rbytes - 2000.0).abs() < 1e-6 && (flow.wios - 2.0).abs() < 1e-6);
        assert!((seen.stalled - 0.5).abs() < 1e-6);
        assert_eq!((seen.dirty, seen.writeback), (2048, 48));
        assert_eq!((seen.file, seen.other), (8096, 1904));
        assert!((seen.application - (2000.0 + 8192.0)).abs() < 1e-6);
        let application = got(1 << 20);
        let seen = meters.sample(&cgroup, application, begin + Duration::from_secs(1));
        assert!(seen.unwrap().is_some());
        // What the probes counted is what applications got, whatever became of it.
        write("memory.stat", &MEMORY.replace("2000", "102000"));
        let mut look = |application, seconds| {
            let seen = meters.sample(&cgroup, application, begin + Duration::from_secs(seconds));
            let seen = seen.unwrap().unwrap();
            let written = application.map(|_: AppBytes| seen.application / 2.0);
            assert_eq!(seen.written, written);
            seen.application
        };
        let counted = look(got(2 << 20), 2);
        assert!((counted - 1_048_576.0).abs() < 1.0, "{counted}");
        // Without them, what became dirty was written.
        write("memory.stat", &MEMORY.replace("2000", "52000"));
        let guessed = look(None, 3);
        assert!((guessed + 50_000.0).abs() < 1.0, "{guessed}");
        // Who has little dirty, and moves little but through the disk, is not asked again at once.
        let mut dirty = |application, millis, stat: &str| {
            write("memory.stat", &MEMORY.replace("2000", stat));
            let at = begin + Duration::from_millis(millis);
            let seen = meters.sample(&cgroup, application, at).unwrap().unwrap();
            seen.dirty - 48
        };
        assert_eq!(dirty(got(0), 5000, "3000"), 3000, "after two seconds");
        assert_eq!(dirty(got(4096), 5250, "4000"), 3000);
        assert_eq!(dirty(got(2 << 20), 5500, "5000"), 5000, "not by a disk");
        write(
            "io.stat",
            "8:0 rbytes=1000 wbytes=9000000 rios=2 wios=2 dbytes=0 dios=0\n",
        );
        assert_eq!(dirty(got(9 << 20), 5750, "6000"), 5000, "by a disk");
        assert_eq!(dirty(got(9 << 20), 6500, "6000"), 6000, "a second later");
        assert_eq!(dirty(None, 6750, "2000000"), 2_000_000, "not counted");
        assert_eq!(dirty(got(0), 7000, "2000001"), 2_000_001);
        assert_eq!(dirty(got(0), 7250, "2000002"), 2_000_002, "much dirty");
        write("io.stat", "8:0 rbytes=x\n");
        assert!(meters.sample(&cgroup, None, begin).is_err());
        std::fs::remove_file(path.join("io.stat")).unwrap();
        assert!(meters.sample(&cgroup, None, begin).is_err());
    }
}
