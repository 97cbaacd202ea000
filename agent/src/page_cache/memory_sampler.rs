//! The memory counters of one tenant, and the values derived from their changes.

use std::time::{Duration, Instant};

use justitia_api::EstimateBasis;
use justitia_kernel::cgroup::Cgroup;
use justitia_kernel::memory::{Limit, MemoryStat};
use justitia_kernel::{Error, PAGE_SIZE, Result};
use justitia_share::num::{to_f64, to_u64};

use crate::model::{COST_HALF_LIFE, MIN_OBSERVATION, WorkingSet};

#[cfg(test)]
mod tests;

/// A cache that paged in this much between two samples is growing, bytes.
const GROWTH: u64 = 256 << 10;
/// A drop of the counters that lasts this long is a deletion of files.
const SETTLED: Duration = Duration::from_secs(1);
/// A drop of a tenant's swap counters that lasts this long is freed memory: the kernel sums up memory that came back only every
/// two seconds.
const FREED: Duration = Duration::from_secs(5);
/// A cache counts as growing for this long after its last growth.
const GROWING: Duration = Duration::from_secs(3);
/// A tenant that uses less than this fraction of a CPU, and pages nothing in, is idle.
const IDLE_CPU: f64 = 0.001;
/// The period of reading limits and minimums.
const LIMITS_PERIOD: Duration = Duration::from_secs(5);
/// The period of reading the CPU time.
const CPU_PERIOD: Duration = Duration::from_secs(1);
/// The sampling period of a busy tenant, as far as the budget allows.
const MIN_PERIOD: Duration = Duration::from_millis(100);
/// The sampling period of a quiet tenant.
const MAX_PERIOD: Duration = Duration::from_secs(20);

/// Samples one tenant. Amounts in bytes, as of the last sample.
#[derive(Debug)]
pub struct MemorySampler {
    /// File pages on LRU lists.
    pub file: u64,
    /// Reclaimable slab.
    pub slab: u64,
    /// Charged memory beside these two.
    pub other: u64,
    /// Swappable memory: the lists of anonymous memory, which include shared memory.
    pub swappable: u64,
    /// Its memory in swap.
    pub swap: u64,
    /// Memory swapped out of it recently, a lower bound.
    swapped_out: DecayingCount,
    /// [`MemoryCounters::swapped_out`].
    swapped_out_peak: Option<Peak>,
    /// Memory that it swapped in again recently.
    swapped_in: DecayingCount,
    /// Its limits and minimums, as last read.
    pub limits: MemoryLimits,
    limits_at: Option<Instant>,
    /// Whether the value of `memory.high` is the agent's, for the dirty budget.
    high_is_ours: bool,
    /// Dirty and under writeback.
    pub unreclaimable: u64,
    /// Anonymous memory.
    pub anon: u64,
    /// Mapped file pages, an upper bound: the kernel includes mapped shared memory.
    pub mapped: u64,
    /// File pages on the active list.
    active: u64,
    /// File pages that were faulted back in after their reclaim (`workingset_refault_file`), since the cgroup was created; a
    /// count, not bytes.
    pub refaults: u64,
    /// File pages paged in so far, less those of deleted files, bytes.
    pub paged_in: u64,
    /// File pages paged in recently.
    page_ins: DecayingCount,
    /// The first sample: its time, file pages, and page-ins.
    first: Option<First>,
    /// The time of the last sample.
    sampled_at: Option<Instant>,
    /// The peak of `paged_in`.
    peak: Option<Peak>,
    /// The time of the last reading of the CPU time, and its value, microseconds.
    cpu: Option<(Instant, u64)>,
    active_at: Instant,
    grew_at: Option<Instant>,
    period: Duration,
}

/// The first sample.
#[derive(Debug)]
struct First {
    at: Instant,
    file: u64,
    paged_in: u64,
}

/// The recent peak of a sum.
#[derive(Clone, Copy, Debug)]
struct Peak {
    value: u64,
    at: Instant,
}

impl Peak {
    /// Records the current sum, and returns by how much it exceeds the peak, which starts at 0. The parts of the sum are not
    /// read at one time, so it can dip for a moment. If it stays below the peak for `settled`, the peak starts anew from it.
    fn rise(peak: &mut Option<Self>, value: u64, settled: Duration, now: Instant) -> u64 {
        let before = *peak.get_or_insert(Self { value: 0, at: now });
        if value >= before.value || now - before.at >= settled {
            *peak = Some(Self { value, at: now });
        }
        value.saturating_sub(before.value)
    }
}

/// The counters of a cgroup's memory.
#[derive(Clone, Copy, Debug, Default)]
pub struct MemoryCounters {
    /// `memory.stat`.
    pub stat: MemoryStat,
    /// `memory.swap.current`, bytes; 0 without swap.
    pub swap: u64,
}

impl MemoryCounters {
    /// Reads the cgroup's counters.
    ///
    /// # Errors
    /// As every reader of a cgroup, also if the cgroup was removed.
    pub fn read(cgroup: &Cgroup) -> Result<Self> {
        Ok(Self {
            stat: cgroup.memory_stat()?,
            swap: cgroup.swap_current()?.unwrap_or(0),
        })
    }

    /// Memory swapped out since the cgroup was created, without memory freed in swap, bytes: the memory in swap now, and the
    /// memory that came back.
    const fn swapped_out(&self) -> u64 {
        self.swap.saturating_add(self.swapped_in())
    }

    /// Memory swapped in again since the cgroup was created, bytes.
    const fn swapped_in(&self) -> u64 {
        self.stat.workingset_refault_anon * PAGE_SIZE
    }
}

/// The managed cgroups with their memory counters.
pub type CgroupTree = justitia_cgroup_tree::CgroupTree<MemorySampler>;
/// A managed cgroup with its memory counters.
pub type Node = justitia_cgroup_tree::Node<MemorySampler>;

impl MemorySampler {
    /// A tenant that has not been sampled yet.
    #[must_use]
    pub fn new(now: Instant) -> Self {
        Self {
            file: 0,
            slab: 0,
            other: 0,
            swappable: 0,
            swap: 0,
            swapped_out: DecayingCount::default(),
            swapped_out_peak: None,
            swapped_in: DecayingCount::default(),
            limits: MemoryLimits::default(),
            limits_at: None,
            high_is_ours: false,
            unreclaimable: 0,
            anon: 0,
            mapped: 0,
            active: 0,
            refaults: 0,
            paged_in: 0,
            page_ins: DecayingCount::default(),
            first: None,
            sampled_at: None,
            peak: None,
            cpu: None,
            active_at: now,
            grew_at: None,
            period: MIN_PERIOD,
        }
    }

    /// The agent has written or restored `memory.high`. After a restore there is mostly no limit, as before. If the operator
    /// had us take a value, it is restored, so the limit is read with the next sample.
    pub const fn note_high(&mut self, ours: bool) {
        if self.high_is_ours && !ours {
            self.limits.high = u64::MAX;
            self.limits_at = None;
        }
        self.high_is_ours = ours;
    }

    /// Its operator's `memory.high`, bytes.
    #[must_use]
    pub const fn high(&self) -> u64 {
        match self.high_is_ours {
            true => u64::MAX,
            false => self.limits.high,
        }
    }

    /// Reads the cgroup's counters, and sometimes its limits; swap only if the host has swap space (`swap_on`).
    ///
    /// # Errors
    /// As every reader of a cgroup, also if the cgroup was removed.
    pub fn sample(&mut self, cgroup: &Cgroup, swap_on: bool, now: Instant) -> Result<()> {
        let counters = if swap_on {
            MemoryCounters::read(cgroup)?
        } else {
            MemoryCounters {
                stat: cgroup.memory_stat()?,
                swap: 0,
            }
        };
        let current = cgroup.memory_current()?;
        self.record(&counters, now);
        self.other = current.saturating_sub(self.file + self.slab);
        if self.limits_at.is_none_or(|at| now - at >= LIMITS_PERIOD) {
            self.limits = MemoryLimits::read(cgroup)?;
            self.limits_at = Some(now);
        }
        if self.cpu.is_none_or(|(at, _)| now - at >= CPU_PERIOD) {
            let usage = cgroup.cpu_usage_usec()?;
            self.record_cpu(usage, now);
        }
        Ok(())
    }

    /// Records counters that were read elsewhere.
    pub fn record(&mut self, counters: &MemoryCounters, now: Instant) {
        let stat = &counters.stat;
        let file = stat.file_lru();
        let out = counters.swapped_out();
        let out = Peak::rise(&mut self.swapped_out_peak, out, FREED, now);
        self.swapped_out.record(self.swapped_out.total() + out, now);
        self.swapped_in.record(counters.swapped_in(), now);
        let paged_in = paged_in(stat).saturating_sub(self.swapped_out.total());
        let busy = self.record_growth(stat, paged_in, now);
        self.period = if busy {
            MIN_PERIOD
        } else {
            (self.period * 3 / 2).min(MAX_PERIOD)
        };
        self.file = file;
        self.slab = stat.slab_reclaimable;
        self.swap = counters.swap;
        self.swappable = stat.anon_lru();
        self.refaults = stat.workingset_refault_file;
        self.paged_in = paged_in;
        // A page that is written again during its writeback counts as both.
        self.unreclaimable = (stat.file_dirty + stat.file_writeback).min(file);
        self.anon = stat.anon;
        self.active = stat.active_file;
        self.mapped = stat.file_mapped;
        self.first.get_or_insert(First {
            at: now,
            file,
            paged_in,
        });
        self.sampled_at = Some(now);
    }

    /// Compares the counters with the last sample. Returns whether anything happened in between.
    fn record_growth(&mut self, stat: &MemoryStat, paged_in: u64, now: Instant) -> bool {
        // A page leaves its list before it counts as reclaimed, so the sum dips for a moment: only growth beyond the peak was
        // paged in. If the sum stays below the peak, files were deleted.
        let growth = Peak::rise(&mut self.peak, paged_in, SETTLED, now);
        self.page_ins.record(self.page_ins.total() + growth, now);
        if self.sampled_at.is_none() {
            return false;
        }
        let slab_growth = stat.slab_reclaimable.saturating_sub(self.slab);
        // Its `memory.low` includes this memory.
        let heap_moved = stat.anon_lru().abs_diff(self.swappable) > GROWTH;
        let refaulted = stat.workingset_refault_file > self.refaults;
        if growth >= GROWTH || slab_growth >= GROWTH || refaulted {
            self.grew_at = Some(now);
            self.active_at = now;
        }
        let file_moved = stat.file_lru().abs_diff(self.file) > GROWTH;
        growth > 0 || slab_growth >= GROWTH || file_moved || heap_moved
    }

    fn record_cpu(&mut self, usage: u64, now: Instant) {
        if let Some((at, before)) = self.cpu {
            let wall = u64::try_from((now - at).as_micros())
                .unwrap_or(u64::MAX)
                .max(1);
            if to_f64(usage.saturating_sub(before)) / to_f64(wall) > IDLE_CPU {
                self.active_at = now;
            }
        }
        self.cpu = Some((now, usage));
    }

    /// Whether its cache has grown recently, or would have without reclaim.
    #[must_use]
    pub fn growing(&self, now: Instant) -> bool {
        self.steady_for(now).is_some_and(|steady| steady < GROWING)
    }

    /// For how long its cache has not grown; `None` if it never did.
    #[must_use]
    pub fn steady_for(&self, now: Instant) -> Option<Duration> {
        self.grew_at.map(|at| now.saturating_duration_since(at))
    }

    /// How long it had used no CPU and paged nothing in at its last sample. Hits in its cache do not show here.
    #[must_use]
    pub fn idle_for(&self, now: Instant) -> Duration {
        let sampled = self.sampled_at.unwrap_or(now);
        sampled.saturating_duration_since(self.active_at)
    }

    /// The working set by the kernel's LRU lists. Those of the multi-gen LRU do not show it: there all file pages count, since
    /// unseen accesses count as use. The cache of a tenant that has been idle for long will not be used soon.
    #[must_use]
    pub fn working_set(&self, multi_gen: bool, now: Instant) -> WorkingSet {
        let idle_for = self.idle_for(now);
        let bytes = match multi_gen {
            _ if idle_for >= MIN_OBSERVATION => 0,
            true => self.file,
            false => self.active,
        };
        WorkingSet {
            bytes,
            observed_for: idle_for,
            evidence: EstimateBasis::Lists,
        }
    }

    /// File pages from its first sample that its page-ins since have not replaced. Whether they are used is known after their
    /// accesses have been observed for [`MIN_OBSERVATION`], or after the same time without observation. Then this is 0.
    /// `working_set` is its working set as far as it is known now.
    #[must_use]
    pub fn unseen(&self, working_set: &WorkingSet, now: Instant) -> u64 {
        let Some(first) = &self.first else {
            return 0;
        };
        let observed_for = match working_set.evidence {
            EstimateBasis::Accesses => working_set.observed_for,
            EstimateBasis::Lists => now.saturating_duration_since(first.at),
        };
        if observed_for >= MIN_OBSERVATION {
            return 0;
        }
        let replaced = self.paged_in.saturating_sub(first.paged_in);
        first.file.saturating_sub(replaced).min(self.file)
    }

    /// File pages paged in recently, decaying, bytes.
    #[must_use]
    pub fn paged_in_lately(&self, now: Instant) -> u64 {
        self.page_ins.recent(now)
    }

    /// Memory swapped out of it recently, and swapped in again, decaying, bytes.
    #[must_use]
    pub fn swapped(&self, now: Instant) -> (u64, u64) {
        (self.swapped_out.recent(now), self.swapped_in.recent(now))
    }

    /// Whether anything happened between the last two samples.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        self.period == MIN_PERIOD
    }

    /// When the next sample is due.
    #[must_use]
    pub fn due(&self, now: Instant) -> Instant {
        now + self.period
    }

    /// The age of the last sample; `None` if there is none.
    #[must_use]
    pub fn age(&self, now: Instant) -> Option<Duration> {
        self.sampled_at.map(|at| now.saturating_duration_since(at))
    }
}

/// All page-ins of a cgroup, less those of deleted files, bytes: its file pages on LRU lists, and the pages reclaimed since it
/// was created. Reclaim of file pages does not change this sum; swapped-out memory has to be subtracted.
#[must_use]
fn paged_in(stat: &MemoryStat) -> u64 {
    stat.file_lru() + stat.pgsteal * PAGE_SIZE
}

/// The values set for a cgroup, bytes; `u64::MAX` is no limit. Without the files, as without the memory controller, nothing is
/// set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryLimits {
    /// `memory.min`.
    pub min: u64,
    /// `memory.high`.
    pub high: u64,
    /// `memory.max`.
    pub max: u64,
    /// `memory.swap.max`.
    pub swap_max: u64,
}

impl Default for MemoryLimits {
    fn default() -> Self {
        Self {
            min: 0,
            high: u64::MAX,
            max: u64::MAX,
            swap_max: u64::MAX,
        }
    }
}

impl MemoryLimits {
    /// Reads the cgroup's files.
    ///
    /// # Errors
    /// If the cgroup is gone, or a file is not understood.
    pub fn read(cgroup: &Cgroup) -> Result<Self> {
        let none = Self::default();
        Ok(Self {
            min: bytes(cgroup.memory_min(), none.min)?,
            high: bytes(cgroup.memory_high(), none.high)?,
            max: bytes(cgroup.memory_max(), none.max)?,
            swap_max: bytes(cgroup.swap_max(), none.swap_max)?,
        })
    }
}

fn bytes(limit: Result<Limit>, missing: u64) -> Result<u64> {
    match limit {
        Ok(Limit::Bytes(bytes)) => Ok(bytes),
        Ok(Limit::Max) => Ok(u64::MAX),
        Err(error) if Error::is_missing(&error) => Ok(missing),
        Err(error) => Err(error),
    }
}

/// The growth of a counter, decaying by half every [`COST_HALF_LIFE`].
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct DecayingCount {
    /// The highest value so far, and when the growth was last computed; `None` before the first value.
    last: Option<(u64, Instant)>,
    recent: f64,
}

impl DecayingCount {
    /// Records the counter's value. A value below an earlier one, such as an estimate, counts as no growth.
    pub(super) fn record(&mut self, value: u64, now: Instant) {
        let Some((before, _)) = self.last else {
            self.last = Some((value, now));
            return;
        };
        self.recent = to_f64(self.recent(now)) + to_f64(value.saturating_sub(before));
        self.last = Some((value.max(before), now));
    }

    /// The recent growth.
    pub(super) fn recent(&self, now: Instant) -> u64 {
        self.last.map_or(0, |(_, at)| {
            to_u64(self.recent * COST_HALF_LIFE.decay(now.saturating_duration_since(at)))
        })
    }

    /// The highest value so far.
    pub(super) fn total(&self) -> u64 {
        self.last.map_or(0, |(value, _)| value)
    }
}
