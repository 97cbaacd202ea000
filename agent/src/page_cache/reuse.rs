//! Miss-ratio curves of tenants from their sampled accesses, and the working sets derived from them.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use justitia_api::{CurveStatus, EstimateBasis};
use justitia_kernel::cgroup::{Cgroup, CgroupId};
use justitia_kernel::probes::IoProbes;
use justitia_share::curve::{
    BLOCK, BREAK_EVEN, DecayedHistogram, HALF_LIFE, MissRatioCurve, ReuseTimes, SamplerUse,
    first_shift, next_shift,
};
use justitia_share::num::{to_f64, to_u64};

use super::memory_sampler::{CgroupTree, MemorySampler};
use crate::model::WorkingSet;
use crate::monitor::{DueQueue, thread_cpu};

#[cfg(test)]
mod tests;

/// The probes' current counts of one tenant.
#[derive(Clone, Debug)]
pub struct ReuseCounts {
    /// Reuse times.
    pub reuse: ReuseTimes,
    /// Accesses that evicted another block from the sample.
    pub evicted: u64,
    /// Blocks in the sample that were accessed within [`RECENT_ACCESSES`].
    pub live: u64,
    /// The fraction of their pages that these blocks need in memory, above 0 and up to 1.
    pub touched: f64,
    /// For each full set of the sampler: how far back it remembers accesses, in accesses.
    pub lookbacks: Vec<u64>,
}

impl Default for ReuseCounts {
    /// Nothing is live: blocks count whole.
    fn default() -> Self {
        Self {
            reuse: ReuseTimes::default(),
            evicted: 0,
            live: 0,
            touched: 1.0,
            lookbacks: Vec::new(),
        }
    }
}

/// A sampled block is live if it is among this many of the tenant's latest accesses.
pub const RECENT_ACCESSES: u64 = 1 << 20;

/// A margin added to the curve's size, as a fraction of it. Reuse times are known to an eighth, and a thousand sampled blocks
/// tell the size of a set to 3 %. For a loop, a cache that is slightly too small is of no use at all.
const MARGIN: f64 = 0.125;

/// A set that is not used ages this much more slowly: its half-life is an hour. A backup takes some hours; what was not used for
/// a day is of no use.
const SLOWEST: f64 = 1.0 / 60.0;

/// The status omits points of the curve that change the miss ratio by less.
const STEP: f64 = 0.01;
/// The status has no curve below this many accesses a second.
const MIN_RATE: f64 = 0.01;

/// A tenant's accesses.
#[derive(Debug)]
pub struct Reuse {
    since: Instant,
    at: Instant,
    before: ReuseCounts,
    recent: DecayedHistogram,
    curve: MissRatioCurve,
    shift: u32,
    /// Blocks.
    working_set: f64,
    /// The last use of its working set.
    used_at: Option<Instant>,
    /// Accesses, decaying with time.
    rate: f64,
}

impl Reuse {
    /// Starts at `now`. The tenant's cache holds `held` bytes.
    #[must_use]
    pub fn new(now: Instant, held: u64) -> Self {
        Self {
            since: now,
            at: now,
            before: ReuseCounts::default(),
            recent: DecayedHistogram::default(),
            curve: MissRatioCurve::default(),
            shift: first_shift(held / BLOCK),
            working_set: 0.0,
            used_at: None,
            rate: 0.0,
        }
    }

    /// Takes over the counts by now. `capacity` is the largest cache that a tenant can have, bytes. The older ones decay as fast as
    /// the working set is used: where nothing is read, nothing has taken the place of what was used before.
    pub fn record(&mut self, mut counts: ReuseCounts, capacity: u64, now: Instant) {
        let new = counts.reuse.since(&self.before.reuse);
        let capacity = to_u64(to_f64(capacity) / block(&counts));
        let shift = next_shift(SamplerUse {
            shift: self.shift,
            accesses: new.accesses,
            evicted: counts.evicted.wrapping_sub(self.before.evicted),
            live: counts.live,
            max_blocks: capacity,
        });
        let elapsed = now.saturating_duration_since(self.at);
        // Only counts are compared with the next ones.
        let lookbacks = std::mem::take(&mut counts.lookbacks);
        let used = self.part_used(new.accesses, elapsed);
        let ages = elapsed.mul_f64(used.clamp(SLOWEST, 1.0));
        self.recent.add(&new, lookbacks, ages);
        self.rate = self
            .rate
            .mul_add(HALF_LIFE.decay(elapsed), to_f64(new.accesses));
        if shift < self.shift {
            self.recent.restart_observation();
        }
        self.shift = shift;
        (self.before, self.at) = (counts, now);
        self.curve = MissRatioCurve::of(&self.recent);
        self.working_set = self.curve.working_set(to_f64(capacity)) * (1.0 + MARGIN);
        if new.accesses > 0 && self.part_used(new.accesses, elapsed) >= 1.0 {
            self.used_at = Some(now);
        }
    }

    /// The accesses in this time as a part of those that its working set needs: as many as it has blocks, within the time that a
    /// block is kept for one read. 1 or more without a working set.
    fn part_used(&self, accesses: u64, elapsed: Duration) -> f64 {
        let needed = self.working_set * elapsed.as_secs_f64() / BREAK_EVEN.as_secs_f64();
        if needed > 0.0 {
            to_f64(accesses) / needed
        } else {
            1.0
        }
    }

    /// How long it had not used its working set when its counts were last read; `None` if it never did. Less than one access
    /// per block in [`BREAK_EVEN`], such as a health check's, is no use of the set.
    #[must_use]
    pub fn idle_for(&self) -> Option<Duration> {
        self.used_at
            .map(|used| self.at.saturating_duration_since(used))
    }

    /// The sampling rate to use: one block in 2 to the power of this.
    #[must_use]
    pub const fn shift(&self) -> u32 {
        self.shift
    }

    /// The curve for the status; `None` while nothing is accessed.
    #[must_use]
    pub fn status(&self) -> Option<CurveStatus> {
        // A steady rate of 1 a second sums up to this, as counts decay.
        let seconds = HALF_LIFE.mean_life().as_secs_f64();
        let accesses = self.rate / seconds;
        let bytes = |blocks: f64| to_u64(blocks * block(&self.before));
        (accesses >= MIN_RATE).then(|| CurveStatus {
            accesses,
            points: self
                .curve
                .steps(STEP)
                .into_iter()
                .map(|(blocks, misses)| (bytes(blocks), (misses * 1e4).round() / 1e4))
                .collect(),
        })
    }

    /// The working set for the planners.
    #[must_use]
    pub fn working_set(&self) -> WorkingSet {
        WorkingSet {
            bytes: to_u64(self.working_set * block(&self.before)),
            observed_for: self.at.saturating_duration_since(self.since),
            evidence: EstimateBasis::Accesses,
        }
    }
}

/// The memory that a block needs, bytes.
fn block(counts: &ReuseCounts) -> f64 {
    to_f64(BLOCK) * counts.touched
}

// Chooses the tenants whose accesses are sampled, and reads the samples at a bounded cost.

/// The period of choosing the sampled tenants.
const CHOOSE_PERIOD: Duration = Duration::from_secs(1);
/// A tenant with fewer file pages is not sampled, bytes.
const MIN_FILE: u64 = 1 << 20;
/// The period of reading the counts of a tenant that accesses its cache.
const MIN_PERIOD: Duration = Duration::from_secs(1);
/// The period of reading those of a quiet tenant: its counts decay.
const MAX_PERIOD: Duration = Duration::from_secs(10);
/// The limit for the CPU time of this, as a fraction of one CPU. Beyond it, it is done less often.
const MAX_CPU: f64 = 0.005;
/// The most CPU time at once, so that the loop is not delayed.
const MAX_SLICE: Duration = Duration::from_millis(1);

/// A tenant whose accesses are sampled.
#[derive(Debug)]
struct SampledTenant {
    /// The index of its curve in the kernel.
    curve: usize,
    reuse: Reuse,
    accesses: AccessCount,
    period: Duration,
}

/// The tenants whose accesses are sampled.
#[derive(Debug, Default)]
pub struct ReuseSampler {
    tenants: HashMap<CgroupId, SampledTenant>,
    /// Free curves below `used`.
    free: Vec<usize>,
    /// The number of curves ever used.
    used: usize,
    due: DueQueue,
    chosen_at: Option<Instant>,
    resumes_at: Option<Instant>,
    refused: Option<String>,
}

impl ReuseSampler {
    /// Chooses tenants and reads counts, when due and as its cost allows. `capacity` is the page cache that can be divided,
    /// bytes.
    pub fn sample(
        &mut self,
        probes: &mut IoProbes,
        cgroups: &CgroupTree,
        capacity: u64,
        now: Instant,
    ) {
        if self.resumes_at.is_some_and(|at| at > now) {
            return;
        }
        let begun = thread_cpu();
        let spent = || thread_cpu().saturating_sub(begun);
        if self.chosen_at.is_none_or(|at| now - at >= CHOOSE_PERIOD) {
            self.chosen_at = Some(now);
            self.choose(probes, cgroups, now);
        }
        while spent() < MAX_SLICE
            && let Some(id) = self.due.take(now)
        {
            if let Some(period) = self.read(probes, cgroups, id, capacity, now) {
                self.due.put(id, now + period);
            }
        }
        self.resumes_at = Some(now + spent().div_f64(MAX_CPU));
    }

    /// A tenant's working set by its accesses; `None` if they are not sampled.
    #[must_use]
    pub fn working_set(&self, id: CgroupId) -> Option<WorkingSet> {
        self.get(id).map(Reuse::working_set)
    }

    /// How long a tenant had not used its working set when its counts were last read; `None` if its accesses are not sampled,
    /// or it never did.
    #[must_use]
    pub fn idle_for(&self, id: CgroupId) -> Option<Duration> {
        self.get(id).and_then(Reuse::idle_for)
    }

    /// For how long a tenant with these counters has used neither CPU nor its working set; and for how long it has not read
    /// that, whatever else it did. One that pages anything in does read it, and where accesses are not sampled, one that is not
    /// idle.
    #[must_use]
    pub fn idle_and_unused_for(
        &self,
        id: CgroupId,
        memory: &MemorySampler,
        now: Instant,
    ) -> (Duration, Duration) {
        let idle_for = memory.idle_for(now);
        let unread_for = self.get(id).map_or(idle_for, |reuse| {
            let observed_for = reuse.working_set().observed_for;
            reuse.idle_for().unwrap_or(observed_for)
        });
        let steady_for = memory.steady_for(now).unwrap_or(Duration::MAX);
        (idle_for.min(unread_for), unread_for.min(steady_for))
    }

    /// A tenant's accesses, where they are sampled.
    #[must_use]
    pub fn get(&self, id: CgroupId) -> Option<&Reuse> {
        self.tenants.get(&id).map(|tenant| &tenant.reuse)
    }

    /// Why accesses are not sampled, if so.
    #[must_use]
    pub fn refused(&self) -> Option<&str> {
        self.refused.as_deref()
    }

    fn choose(&mut self, probes: &mut IoProbes, cgroups: &CgroupTree, now: Instant) {
        let order = cgroups.breadth_first();
        let nodes = order.into_iter().filter_map(|id| cgroups.get(id));
        let leaves = nodes.filter(|node| node.children.is_empty() && node.populated);
        let holders: Vec<(CgroupId, u64)> = leaves
            .map(|node| {
                let lately = cgroups.departed(node.parent, now).held;
                (node.cgroup.id(), node.memory.file.saturating_add(lately))
            })
            .collect();
        let sampled = self.tenants.keys().copied().collect();
        let change = choose(&holders, &sampled, probes.curve_count());
        let held: HashMap<CgroupId, u64> = holders.into_iter().collect();
        let mut requests = Vec::new();
        for id in change.stop {
            if let Some(tenant) = self.tenants.remove(&id) {
                self.free.push(tenant.curve);
                requests.push((id, None));
            }
        }
        for id in change.start {
            let held = held.get(&id).copied().unwrap_or(0);
            requests.push((id, Some(self.start(probes, id, held, now))));
        }
        self.request(probes, &requests);
    }

    /// Gives a curve to a tenant whose cache holds `held` bytes. Returns the curve and the sampling rate, one block in 2 to the
    /// power of the number.
    fn start(
        &mut self,
        probes: &mut IoProbes,
        id: CgroupId,
        held: u64,
        now: Instant,
    ) -> (usize, u32) {
        let curve = self.free.pop().unwrap_or(self.used);
        self.used = self.used.max(curve + 1);
        if let Err(error) = probes.clear_reuse(curve) {
            self.refused = Some(error.to_string());
        }
        let reuse = Reuse::new(now, held);
        let shift = reuse.shift();
        let tenant = SampledTenant {
            curve,
            reuse,
            accesses: AccessCount::new(block_accesses(probes, id)),
            period: MIN_PERIOD,
        };
        self.tenants.insert(id, tenant);
        self.due.put(id, now + MIN_PERIOD);
        (curve, shift)
    }

    fn request(&mut self, probes: &mut IoProbes, requests: &[(CgroupId, Option<(usize, u32)>)]) {
        if requests.is_empty() {
            return;
        }
        self.refused = probes
            .sample_reuse(requests)
            .err()
            .map(|error| error.to_string());
    }

    /// Reads one tenant's counts. Returns the time until the next reading; `None` if it is not sampled any more.
    fn read(
        &mut self,
        probes: &mut IoProbes,
        cgroups: &CgroupTree,
        id: CgroupId,
        capacity: u64,
        now: Instant,
    ) -> Option<Duration> {
        let tenant = self.tenants.get_mut(&id)?;
        let alone = cgroups.get(id).is_some_and(|node| is_alone(&node.cgroup));
        let mut counts = read_counts(probes, tenant.curve)?;
        let before = tenant.accesses.all;
        let of_itself = block_accesses(probes, id).filter(|_| alone);
        counts.reuse.accesses = tenant.accesses.record(of_itself, counts.reuse.sampled());
        let quiet = tenant.accesses.all == before;
        tenant.period = if quiet {
            (tenant.period * 3 / 2).min(MAX_PERIOD)
        } else {
            MIN_PERIOD
        };
        let shift = tenant.reuse.shift();
        tenant.reuse.record(counts, capacity, now);
        let (curve, period, next) = (tenant.curve, tenant.period, tenant.reuse.shift());
        if next != shift {
            self.request(probes, &[(id, Some((curve, next)))]);
        }
        Some(period)
    }
}

/// The number of a cgroup's own accesses so far; `None` before its first access, or if it cannot be read now.
fn block_accesses(probes: &IoProbes, id: CgroupId) -> Option<u64> {
    let counters = probes.counters_of(id)?;
    Some(counters.block_accesses)
}

/// Whether a tenant's cgroup makes all its accesses. Accesses of cgroups below it that are no tenants count for its curve, but
/// not for its own counter. These are threaded cgroups, in which libvirt keeps the threads of a virtual machine; cgroups
/// without the memory controller; and excluded or untracked ones.
fn is_alone(cgroup: &Cgroup) -> bool {
    matches!(cgroup.descendants(), Ok(0))
}

/// A tenant's accesses since sampling began. The cgroup's own counter gives them if the cgroup [is alone](is_alone); else the
/// sampled accesses do, scaled by the sampling rate. The counter includes earlier accesses, and starts anew if a cgroup loses
/// the memory controller for a moment. So the growths of either are summed up.
#[derive(Debug)]
struct AccessCount {
    all: u64,
    of_itself: Option<u64>,
    sampled: u64,
}

impl AccessCount {
    /// For a cgroup that has made `of_itself` accesses before.
    const fn new(of_itself: Option<u64>) -> Self {
        Self {
            all: 0,
            of_itself,
            sampled: 0,
        }
    }

    /// Records the cgroup's own accesses, if they are known and all, and the accesses `sampled` by its curve. Returns the sum
    /// of all accesses.
    fn record(&mut self, of_itself: Option<u64>, sampled: u64) -> u64 {
        let grown = of_itself.zip(self.of_itself);
        let grown = grown.and_then(|(now, before)| now.checked_sub(before));
        let new = grown.unwrap_or_else(|| sampled.saturating_sub(self.sampled));
        self.all = self.all.saturating_add(new);
        (self.of_itself, self.sampled) = (of_itself, sampled);
        self.all
    }
}

/// Reads a curve's counts; without the number of all accesses.
fn read_counts(probes: &IoProbes, curve: usize) -> Option<ReuseCounts> {
    let reuse = probes.reuse(curve).ok()?;
    let mut times = ReuseTimes {
        cold: reuse.cold(),
        ..ReuseTimes::default()
    };
    for (sum, count) in times.times.iter_mut().zip(reuse.times()) {
        *sum = count;
    }
    Some(ReuseCounts {
        reuse: times,
        evicted: reuse.evicted(),
        live: reuse.live(RECENT_ACCESSES),
        touched: reuse.touched(RECENT_ACCESSES),
        lookbacks: reuse.lookbacks().collect(),
    })
}

/// The tenants whose sampling starts and stops.
#[derive(Debug, Default, PartialEq, Eq)]
struct Change {
    stop: Vec<CgroupId>,
    start: Vec<CgroupId>,
}

/// Chooses the tenants with the most file pages, up to the number of curves. `holders` are the tenants with their file pages in
/// bytes. A sampled tenant loses its curve only to one that holds twice as much.
fn choose(holders: &[(CgroupId, u64)], sampled: &HashSet<CgroupId>, curves: usize) -> Change {
    let rank = |id: &CgroupId, file: u64| {
        if sampled.contains(id) {
            file.saturating_mul(2).max(1)
        } else {
            file
        }
    };
    let mut ranked: Vec<(u64, CgroupId)> = holders
        .iter()
        .map(|&(id, file)| (rank(&id, file), id))
        .filter(|(rank, id)| *rank >= MIN_FILE || sampled.contains(id))
        .collect();
    ranked.sort_unstable_by_key(|(rank, id)| (Reverse(*rank), id.0));
    ranked.truncate(curves);
    let chosen: HashSet<CgroupId> = ranked.iter().map(|(_, id)| *id).collect();
    let mut stop: Vec<CgroupId> = sampled.difference(&chosen).copied().collect();
    stop.sort_unstable_by_key(|id| id.0);
    let start = ranked.into_iter().map(|(_, id)| id);
    Change {
        stop,
        start: start.filter(|id| !sampled.contains(id)).collect(),
    }
}
