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
    /// What it transferred, by device, per second: of the disks that it has used in the last minute.
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

    /// Whether it has used a device in the last minute. What it waits for elsewhere is no use of that one.
    #[must_use]
    pub fn uses(&self, device: DevId) -> bool {
        self.flows.iter().any(|(id, _)| *id == device)
    }

    /// What of its I/O was with one device, where it uses several: what others transferred was theirs, and dirty pages are
    /// where it writes.
    #[must_use]
    pub fn part_of(&self, device: DevId) -> (f64, f64) {
        let here = self.flow(device);
        let all = |of: fn(&Flow) -> f64| self.flows.iter().map(|(_, flow)| of(flow)).sum::<f64>();
        let elsewhere = all(Flow::bytes) - here.bytes();
        let application = match elsewhere > 0.0 {
            true => (self.application - elsewhere).max(here.bytes()),
            false => self.application,
        };
        let written = all(|flow| flow.written);
        let share = match written > 0.0 {
            true => here.written / written,
            false => 1.0,
        };
        (application, to_f64(self.dirty) * share)
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
    /// The same as of the last reading of the probes, where that is free of cost.
    fn app_io_lately(&self, id: CgroupId, _now: Instant) -> Option<AppIo> {
        self.app_io(id)
    }
}

/// What a tenant's applications did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AppIo {
    /// Bytes read and written.
    pub bytes: u64,
    /// Nanoseconds with requests at a disk that somebody waits for; of several cgroups their sum.
    pub outstanding: u64,
    /// How long ago this was read.
    pub age: Duration,
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
/// A tenant that has transferred nothing to or from a device for so long uses another one. A disk that stands still does so for half as long at
/// most, by the kernel's own timeout of a request.
const UNUSED_AFTER: Duration = Duration::from_secs(60);
/// The files of at most this many tenants stay open between samples.
const MAX_OPEN: usize = 64;

/// Samples tenants. Each [`TenantIo`] covers the time between two samples.
#[derive(Debug, Default)]
pub(super) struct TenantIoSampler {
    /// The disks that count; `None`: all devices. What went through a logical volume is counted at its disk.
    disks: Option<Vec<DevId>>,
    last: HashMap<CgroupId, IoSample>,
    files: HashMap<CgroupId, StatFdCache>,
}

/// A tenant's counters at one moment.
#[derive(Debug)]
struct IoSample {
    at: Instant,
    io: Vec<(DevId, IoStat)>,
    /// When it was last seen to have used a device, by device.
    used: Vec<(DevId, Instant)>,
    /// Time that tasks have waited for I/O (PSI `some`), microseconds; `None` without PSI.
    stalled: Option<u64>,
    application: Option<AppIo>,
    /// When that was read.
    read_at: Instant,
    /// Bytes that disks have moved since then, at most: whether the probes see these is not known yet.
    unread: f64,
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
    /// One that has seen nothing yet, of these disks.
    pub(super) fn of(disks: Vec<DevId>) -> Self {
        Self {
            disks: Some(disks),
            ..Self::default()
        }
    }

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
        if let Some(disks) = &self.disks {
            here.used.retain(|(device, _)| disks.contains(device));
        }
        if self.files.len() < MAX_OPEN {
            self.files.insert(id, files);
        }
        let interval = before.and_then(|before| between(&before, &mut here));
        self.last.insert(id, here);
        Ok(interval)
    }

    /// Forgets all that was sampled.
    pub(super) fn reset(&mut self) {
        self.last.clear();
        self.files.clear();
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
        let age = application.map_or(Duration::ZERO, |application| application.age);
        let read_at = at.checked_sub(age).unwrap_or(at);
        // What was read before the last sample's reading is contained in that one.
        let newer =
            before.filter(|before| before.application.is_some() && read_at < before.read_at);
        let (application, read_at) = newer.map_or((application, read_at), |before| {
            (before.application, before.read_at)
        });
        let memory = match before.filter(|before| before.memory_holds(&io, application, at)) {
            Some(before) => before.memory,
            None => MemorySample::read(files, at)?,
        };
        // Pressure that cannot be read counts as a kernel without PSI.
        let stalled = files.io_pressure().ok().flatten();
        Ok(Self {
            at,
            used: used_lately(&io, before, at),
            io,
            stalled: stalled.map(|psi| psi.some.total),
            application,
            read_at,
            unread: 0.0,
            ahead: AHEAD,
            memory,
        })
    }

    /// [`IoSample::unread`] of the sample after `before`, where disks have moved so many bytes between the two.
    fn unread_since(&self, before: &Self, moved: f64) -> f64 {
        if self.read_at >= self.at {
            0.0
        } else if self.read_at >= before.at {
            moved
        } else {
            before.unread + moved
        }
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

/// The devices whose counters show that the tenant has used them lately.
fn used_lately(
    io: &[(DevId, IoStat)],
    before: Option<&IoSample>,
    now: Instant,
) -> Vec<(DevId, Instant)> {
    let Some(before) = before else {
        return Vec::new();
    };
    let moved = |stat: &IoStat| stat.rbytes + stat.wbytes + stat.rios + stat.wios;
    let used_at = |(device, stat): &(DevId, IoStat)| {
        let then = before.io.iter().find(|(id, _)| id == device);
        if moved(stat) > then.map_or(0, |(_, then)| moved(then)) {
            return Some((*device, now));
        }
        let at = before.used.iter().find(|(id, _)| id == device)?.1;
        (now - at < UNUSED_AFTER).then_some((*device, at))
    };
    io.iter().filter_map(used_at).collect()
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
    let used = |device: &DevId| here.used.iter().any(|(id, _)| id == device);
    let flows: Vec<(DevId, Flow)> = here
        .io
        .iter()
        .filter(|(device, _)| used(device))
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
            here.unread = here.unread_since(before, moved * seconds);
            let ahead = before.ahead + (seen - moved) * seconds;
            let unseen = (-ahead - here.unread).max(0.0);
            here.ahead = (ahead + unseen).min(to_f64(here.memory.dirty) + AHEAD);
            seen + unseen / seconds
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
mod tests;
