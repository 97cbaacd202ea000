//! A tenant's sampled I/O to the disks in one interval.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use justitia_kernel::Result;
use justitia_kernel::cgroup::{Cgroup, CgroupId, StatFdCache};
use justitia_kernel::io::{DevId, IoStat};
use justitia_share::num::to_f64;

/// Bytes and requests per second to and from a device.
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
    /// Read and written bytes.
    #[must_use]
    pub fn bytes(&self) -> f64 {
        self.read + self.written
    }
}

/// A tenant's I/O in one interval. Amounts in bytes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TenantIo {
    /// Its transfers per second to and from each disk that it has used in the last minute.
    pub flows: Vec<(DevId, Flow)>,
    /// The fraction of the time in which the tenant waited. It waits while a task waits for I/O, or for memory that writeback
    /// must free first (PSI), or while a disk has requests of it that a task waits for (probes). Without both sources: 1 with
    /// I/O. Then the disk's own counters show whether it is contended.
    pub stalled: f64,
    /// Bytes per second that its applications read and wrote, and disk I/O for it beyond that: by mapped files, block devices
    /// and others that the probes do not see. Without probes: its disk I/O plus the growth of dirty pages. That is negative in
    /// an interval in which more was written back, and meant for averages.
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
/// A buffered writer remains one with this many dirty bytes: its dirty budget may not allow more. Without the budget they would
/// grow again.
const STILL_DIRTY: u64 = DIRTY / 16;

impl TenantIo {
    /// Whether it uses a disk: it transfers, waits, or has dirty pages.
    #[must_use]
    pub fn is_active(&self) -> bool {
        let moves = self.flows.iter().any(|(_, flow)| flow.bytes() > 0.0);
        moves || self.stalled > 0.0 || self.dirty >= DIRTY
    }

    /// Whether it is a buffered writer. `was`: whether it was one recently.
    #[must_use]
    pub fn is_buffered_writer(&self, was: bool) -> bool {
        self.dirty >= if was { STILL_DIRTY } else { DIRTY }
    }

    /// Whether it has used a device in the last minute. Waits for other devices do not count.
    #[must_use]
    pub fn uses(&self, device: DevId) -> bool {
        self.flows.iter().any(|(id, _)| *id == device)
    }

    /// The parts of its application I/O and dirty pages that belong to one of several devices. Transfers of other devices are
    /// theirs; dirty pages belong to the devices that it writes to.
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

    /// Its transfers to and from one device, per second.
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
    /// A tenant's disk activity as of the last reading of the probes; free of cost. `None` without probes.
    fn disk_activity(&self, id: CgroupId) -> Option<DiskActivity>;
    /// The I/O of a tenant's applications up to now; this reads the probes. `None` without probes.
    fn app_io(&self, id: CgroupId) -> Option<AppIo>;
    /// The same as of the last reading of the probes, if that is free of cost.
    fn app_io_lately(&self, id: CgroupId, _now: Instant) -> Option<AppIo> {
        self.app_io(id)
    }
}

/// I/O of a tenant's applications.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AppIo {
    /// Bytes read and written.
    pub bytes: u64,
    /// Nanoseconds with requests at a disk that a task waits for; for several cgroups the sum.
    pub outstanding: u64,
    /// The age of these values.
    pub age: Duration,
}

/// Disk activity of a tenant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskActivity {
    /// A number that grows with it.
    pub total: u64,
    /// Whether it grew in the last seconds.
    pub recent: bool,
}

/// Fewer bytes of dirty pages are negligible.
const BUFFERED: u64 = 1 << 20;
/// The period of reading `memory.stat`, the costliest file, for a tenant with less than [`BUFFERED`] bytes dirty, whose
/// applications have moved less than that beside the disk.
const MEMORY_PERIOD: Duration = Duration::from_secs(1);

/// Without PSI it is unknown whether a tenant with dirty pages and no transfers waits. This is too little to count as waiting,
/// and too much to count as inactive.
const STALL_UNKNOWN: f64 = 0.05;
/// Applications are ahead of the disk by their dirty pages and by this many bytes, since the sums of dirty pages are up to two
/// seconds old. If they were not ahead, disk I/O beyond the probes' counts belongs to the applications as well.
const AHEAD: f64 = 16.0 * 1048576.0;
/// A tenant without transfers to or from a device for this long does not use it. A stalled disk stands still for at most half
/// as long, by the kernel's own timeout of a request.
const UNUSED_AFTER: Duration = Duration::from_secs(60);
/// The files of at most this many tenants stay open between samples.
const MAX_OPEN: usize = 64;

/// Samples tenants. Each [`TenantIo`] covers the time between two samples.
#[derive(Debug, Default)]
pub(super) struct TenantIoSampler {
    /// The disks that count; `None`: all devices. I/O through a logical volume counts at its disk.
    disks: Option<Vec<DevId>>,
    last: HashMap<CgroupId, IoSample>,
    files: HashMap<CgroupId, StatFdCache>,
}

/// A tenant's counters at one moment.
#[derive(Debug)]
struct IoSample {
    at: Instant,
    io: Vec<(DevId, IoStat)>,
    /// When each device was last seen in use.
    used: Vec<(DevId, Instant)>,
    /// Time that tasks have waited for I/O (PSI `some`), microseconds; `None` without PSI.
    stalled: Option<u64>,
    application: Option<AppIo>,
    /// When `application` was read.
    read_at: Instant,
    /// An upper bound of the bytes that disks have moved since then: it is not known yet whether the probes see them.
    unread: f64,
    /// Bytes that applications have written ahead of the disk and that may reach it later: dirty pages, and [`AHEAD`].
    ahead: f64,
    memory: MemorySample,
}

/// The values of `memory.stat`, `memory.current` and `memory.pressure` at one moment.
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
    /// A sampler without samples, for these disks.
    pub(super) fn of(disks: Vec<DevId>) -> Self {
        Self {
            disks: Some(disks),
            ..Self::default()
        }
    }

    /// Samples a tenant. `application` is its applications' I/O so far, if known. `None` for the first sample.
    ///
    /// # Errors
    /// If the cgroup's counters cannot be read; then it is forgotten.
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

    /// Forgets all samples.
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
        // An older reading is contained in the last sample's.
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

    /// [`IoSample::unread`] of the sample after `before`, if disks have moved `moved` bytes between the two.
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

/// The devices that the tenant has used recently, by their counters.
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
