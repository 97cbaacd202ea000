//! One tenant's counters, and what follows from their change.

use std::time::{Duration, Instant};

use justitia_api::Evidence;
use justitia_kernel::PAGE_SIZE;
use justitia_kernel::Result;
use justitia_kernel::cgroup::Cgroup;
use justitia_kernel::memory::MemoryStat;

use crate::model::{MIN_OBSERVATION, WorkingSet};

/// A cache that took in this much between two looks is growing, bytes.
const GREW: u64 = 256 << 10;
/// Pages that were deleted are believed to be gone after this long.
const SETTLED: Duration = Duration::from_secs(1);
/// It is said to grow for this long after it last did.
const GROWING: Duration = Duration::from_secs(3);
/// A tenant that uses less than this part of a CPU, and takes in nothing, is idle.
const IDLE_CPU: f64 = 0.001;
/// How often the CPU time is looked at.
const CPU_PERIOD: Duration = Duration::from_secs(1);
/// A tenant in which something happens is looked at this often, if the budget allows.
const SHORTEST: Duration = Duration::from_millis(100);
/// A quiet tenant is looked at this often.
const LONGEST: Duration = Duration::from_secs(20);

/// What was last read of a tenant, bytes.
#[derive(Debug)]
pub struct MemorySampler {
    /// File pages on LRU lists.
    pub file: u64,
    /// Charged memory beside them.
    pub other: u64,
    /// Dirty and under writeback.
    pub unreclaimable: u64,
    /// Anonymous memory.
    pub anon: u64,
    /// File pages that processes have mapped, shared memory left out.
    pub mapped: u64,
    /// File pages on the active list.
    active: u64,
    /// File pages taken in, bytes per second over the last interval.
    pub page_in_rate: u64,
    /// Pages that came back after having been reclaimed, since the cgroup was made.
    pub refaults: u64,
    /// File pages on LRU lists, and all that was reclaimed since the cgroup was made.
    pub taken_in: u64,
    counters: Option<Counters>,
    /// The most seen of file pages and pages reclaimed, together, bytes; and when.
    intake: u64,
    intake_at: Instant,
    cpu: Option<(Instant, u64)>,
    active_at: Instant,
    grew_at: Option<Instant>,
    period: Duration,
}

#[derive(Debug)]
struct Counters {
    at: Instant,
    refaults: u64,
}

impl MemorySampler {
    /// A tenant of which nothing is known yet.
    #[must_use]
    pub fn new(now: Instant) -> Self {
        Self {
            file: 0,
            other: 0,
            unreclaimable: 0,
            anon: 0,
            mapped: 0,
            active: 0,
            page_in_rate: 0,
            refaults: 0,
            taken_in: 0,
            counters: None,
            intake: 0,
            intake_at: now,
            cpu: None,
            active_at: now,
            grew_at: None,
            period: SHORTEST,
        }
    }

    /// Reads the cgroup's counters.
    ///
    /// # Errors
    /// As every reader of a cgroup; that it is gone is one.
    pub fn read(&mut self, cgroup: &Cgroup, now: Instant) -> Result<()> {
        let stat = cgroup.memory_stat()?;
        let current = cgroup.memory_current()?;
        self.record(&stat, now);
        self.other = current.saturating_sub(self.file);
        if self.cpu.is_none_or(|(at, _)| now - at >= CPU_PERIOD) {
            let usage = cgroup.cpu_usage_usec()?;
            self.take_cpu(usage, now);
        }
        Ok(())
    }

    /// Takes counters that were read elsewhere.
    pub fn record(&mut self, stat: &MemoryStat, now: Instant) {
        let file = stat.file_lru();
        let refaults = stat.workingset_refault_file;
        let mut busy = false;
        let intake = taken_in(stat);
        if let Some(last) = &self.counters {
            // A page leaves the list before it counts as reclaimed: only what exceeds the highest sum seen
            // has come in. A sum that stays below it means that files were deleted.
            let paged_in = intake.saturating_sub(self.intake);
            if intake >= self.intake || now - self.intake_at >= SETTLED {
                (self.intake, self.intake_at) = (intake, now);
            }
            let millis = u64::try_from((now - last.at).as_millis())
                .unwrap_or(u64::MAX)
                .max(1);
            self.page_in_rate = paged_in.saturating_mul(1000) / millis;
            if paged_in >= GREW || refaults > last.refaults {
                self.grew_at = Some(now);
                self.active_at = now;
            }
            busy = paged_in > 0 || file.abs_diff(self.file) > GREW;
        } else {
            (self.intake, self.intake_at) = (intake, now);
        }
        self.period = if busy {
            SHORTEST
        } else {
            (self.period * 3 / 2).min(LONGEST)
        };
        self.file = file;
        self.refaults = refaults;
        self.taken_in = intake;
        self.unreclaimable = stat.file_dirty + stat.file_writeback;
        self.anon = stat.anon;
        self.active = stat.active_file;
        self.mapped = stat.file_mapped.saturating_sub(stat.shmem);
        self.counters = Some(Counters { at: now, refaults });
    }

    fn take_cpu(&mut self, usage: u64, now: Instant) {
        if let Some((at, before)) = self.cpu {
            let wall = u64::try_from((now - at).as_micros())
                .unwrap_or(u64::MAX)
                .max(1);
            let part = justitia_share::num::to_f64(usage.saturating_sub(before))
                / justitia_share::num::to_f64(wall);
            if part > IDLE_CPU {
                self.active_at = now;
            }
        }
        self.cpu = Some((now, usage));
    }

    /// Whether its cache has been growing lately, or would have, had nothing been reclaimed from it.
    #[must_use]
    pub fn growing(&self, now: Instant) -> bool {
        self.grew_at
            .is_some_and(|at| now - at < GROWING.max(2 * self.period))
    }

    /// For how long it has used neither CPU nor cache, as far as was looked.
    #[must_use]
    pub fn idle_for(&self, now: Instant) -> Duration {
        let seen = self.counters.as_ref().map_or(now, |c| c.at);
        seen.saturating_duration_since(self.active_at)
    }

    /// What the kernel's lists say of the cache that it can use. The multi-gen LRU's say nothing; and what one used that
    /// has been idle since will not be used soon.
    #[must_use]
    pub fn working_set(&self, multi_gen: bool, now: Instant) -> WorkingSet {
        let watched = self.idle_for(now);
        let says = !multi_gen && watched < MIN_OBSERVATION;
        WorkingSet {
            useful: if says { self.active } else { 0 },
            observed_for: watched,
            evidence: Evidence::Lists,
        }
    }

    /// Whether something happened between the last two looks.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        self.period == SHORTEST
    }

    /// When it should be looked at again.
    #[must_use]
    pub fn due(&self, now: Instant) -> Instant {
        now + self.period
    }

    /// How old the knowledge is; `None` if there is none.
    #[must_use]
    pub fn age(&self, now: Instant) -> Option<Duration> {
        self.counters
            .as_ref()
            .map(|c| now.saturating_duration_since(c.at))
    }
}

/// File pages on LRU lists, and all that was reclaimed since the cgroup was made, bytes: what it has taken in, less the
/// files that were deleted. Reclaim alone does not change it.
#[must_use]
pub fn taken_in(stat: &MemoryStat) -> u64 {
    stat.file_lru() + stat.pgsteal * PAGE_SIZE
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stat(file_mib: u64, pgsteal: u64) -> MemoryStat {
        MemoryStat {
            inactive_file: file_mib << 20,
            pgsteal,
            ..MemoryStat::default()
        }
    }

    #[test]
    fn growth_counts_what_was_reclaimed_meanwhile() {
        let t0 = Instant::now();
        let at = |ms| t0 + Duration::from_millis(ms);
        let mut meter = MemorySampler::new(t0);
        meter.record(&stat(100, 0), at(0));
        assert!(!meter.growing(at(0)), "one look shows no growth");
        meter.record(&stat(100, 256), at(500));
        assert!(meter.growing(at(500)));
        assert_eq!(meter.page_in_rate, 2 << 20, "1 MiB in half a second");
        meter.record(&stat(100, 256), at(3600));
        assert!(!meter.growing(at(3600)));
    }

    #[test]
    fn what_lies_on_the_active_list_is_used_until_its_owner_has_been_idle_for_long() {
        let t0 = Instant::now();
        let mut meter = MemorySampler::new(t0);
        let mut stat = stat(100, 0);
        stat.active_file = 30 << 20;
        meter.record(&stat, t0);
        assert_eq!(meter.working_set(false, t0).useful, 30 << 20);
        assert_eq!(meter.working_set(true, t0).useful, 0, "the multi-gen LRU");
        let later = t0 + 2 * MIN_OBSERVATION;
        meter.record(&stat, later);
        let seen = meter.working_set(false, later);
        assert_eq!((seen.useful, seen.observed_for), (0, 2 * MIN_OBSERVATION));
    }

    #[test]
    fn a_quiet_tenant_is_looked_at_less_and_less() {
        let t0 = Instant::now();
        let mut meter = MemorySampler::new(t0);
        let mut now = t0;
        for _ in 0..30 {
            meter.record(&stat(100, 0), now);
            now = meter.due(now);
        }
        assert_eq!(meter.period, LONGEST);
        assert!(meter.idle_for(now) > Duration::from_secs(60));
        meter.record(&stat(120, 0), now);
        assert_eq!(meter.period, SHORTEST);
        assert_eq!(meter.idle_for(now), Duration::ZERO);
    }
}
