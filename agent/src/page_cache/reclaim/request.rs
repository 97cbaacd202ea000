//! A request to the reclaim threads, its result, and the pressure under which a tenant is left alone.

use std::time::{Duration, Instant};

use justitia_api::ReclaimExemption;
use justitia_kernel::Result;
use justitia_kernel::cgroup::{Cgroup, Ownership};
use justitia_kernel::knob::Knob;
use justitia_kernel::memory::Limit;
use justitia_kernel::psi::PsiResource;

use crate::model::Key;
use crate::page_cache::memory_sampler::MemoryCounters;

/// The most for one write of `memory.reclaim`, bytes: a longer one delays the cgroup's removal.
pub(super) const BATCH: u64 = 8 << 20;

/// How file pages are reclaimed from one tenant.
#[derive(Clone, Debug)]
pub enum ReclaimTarget {
    /// `memory.reclaim` of its cgroup, with this `swappiness=` (`None` if the kernel has no such argument).
    Cgroup(Cgroup, Option<u8>),
    /// `memory.reclaim` of a cgroup with this `swappiness=`, for its own pages: the kernel skips `children` that are within
    /// their `memory.low`. At the root it does so with the classic LRU only.
    OwnPages {
        /// The cgroup; the root for memory outside all tenants.
        cgroup: Cgroup,
        /// Its children that are tenants.
        children: Vec<Cgroup>,
        /// `swappiness=`.
        swappiness: Option<u8>,
    },
    /// `memory.reclaim` of its cgroup, of anonymous memory only.
    Anonymous(Cgroup),
    /// The root cgroup's own list, by the debugfs interface of the multi-gen LRU.
    RootList,
}

/// A request to reclaim from one tenant.
#[derive(Clone, Debug)]
pub struct ReclaimRequest {
    /// The tenant.
    pub key: Key,
    /// How to reclaim.
    pub target: ReclaimTarget,
    /// The amount, bytes.
    pub bytes: u64,
    /// The tenant's cgroup and its ancestors, from the bottom up. `memory.reclaim` of a cgroup ignores the `memory.min` of that
    /// cgroup and of its ancestors.
    pub minimums: Vec<Cgroup>,
    /// Shows whether the tenant thrashes: then nothing is reclaimed. `None` if it is not known.
    pub pressure: Option<Pressure>,
}

impl ReclaimRequest {
    /// The amount in bytes that keeps all cgroups above their current `memory.min`. A `memory.min` counts up to that of the
    /// topmost ancestor: the kernel gives no cgroup more protection than its ancestors have
    /// (`page_counter_calculate_protection` in mm/page_counter.c), so a delegatee cannot exempt itself.
    ///
    /// # Errors
    /// If it cannot be read now. Then nothing may be reclaimed.
    pub(super) fn above_minimums(&self, bytes: u64) -> Result<u64> {
        let (mut bytes, mut topmost) = (bytes, None);
        for cgroup in self.minimums.iter().rev() {
            let min = match cgroup.memory_min() {
                Ok(Limit::Bytes(min)) => min,
                Ok(Limit::Max) => u64::MAX,
                Err(error) if error.is_missing() => continue,
                Err(error) => return Err(error),
            };
            let min = min.min(*topmost.get_or_insert(min));
            if min > 0 {
                bytes = bytes.min(cgroup.memory_current()?.saturating_sub(min));
            }
        }
        Ok(bytes)
    }

    /// Whether the tenant thrashes now, so that nothing may be reclaimed from it. Records that in `result`.
    ///
    /// # Errors
    /// If it cannot be read now. Then nothing may be reclaimed from it either.
    pub(super) fn is_thrashing(&self, result: &mut ReclaimResult) -> Result<bool> {
        let Some(mut pressure) = self.pressure.clone() else {
            return Ok(false);
        };
        // The earlier state, in case of an error.
        result.own_limits = pressure.own_limits;
        let full = pressure.thrashing(Instant::now())?;
        result.own_limits = pressure.own_limits;
        result.exempt = full.map(|full_avg10| ReclaimExemption::Thrashing { full_avg10 });
        Ok(full.is_some())
    }
}

/// The result of a request.
#[derive(Clone, Debug)]
pub struct ReclaimResult {
    /// The tenant.
    pub key: Key,
    /// The requested amount, bytes; 0 for a request that was not carried out.
    pub requested: u64,
    /// The reclaimed amount, by the tenant's own counters, bytes.
    pub freed: u64,
    /// The amount reclaimed from its children, which was not intended, bytes.
    pub freed_from_children: u64,
    /// The tenant's counters afterwards, if it is a cgroup that still exists.
    pub after: Option<MemoryCounters>,
    /// Why nothing was reclaimed, if so.
    pub exempt: Option<ReclaimExemption>,
    /// The tenant's own limits, as known.
    pub own_limits: OwnLimits,
    /// The kernel's error, if it refused.
    pub error: Option<String>,
    /// Its duration.
    pub took: Duration,
}

impl ReclaimResult {
    /// The result of a request that was too old to be carried out.
    pub(super) fn of_stale(request: &ReclaimRequest) -> Self {
        let pressure = request.pressure.as_ref();
        Self {
            own_limits: pressure.map(|of| of.own_limits).unwrap_or_default(),
            ..Self::new(request.key, 0)
        }
    }

    /// The result of a request before anything was reclaimed.
    pub(super) fn new(key: Key, requested: u64) -> Self {
        Self {
            key,
            requested,
            freed: 0,
            freed_from_children: 0,
            after: None,
            exempt: None,
            own_limits: OwnLimits::default(),
            error: None,
            took: Duration::ZERO,
        }
    }
}

// Whether a tenant thrashes: its tasks wait for memory, other than by its own limits.
//
// A delegatee can make the pressure of any cgroup in its subtree: it sets `memory.high` just below the usage, and runs one task
// into it. So the pressure of the whole delegated subtree counts (PSI `full`: all tasks in it are stalled), and only if no
// limit within was hit in the time that this average covers. The tenant cannot move a limit that the administrator has set, on
// a service for example: the pressure behind it counts.

/// The time constant of PSI's `avg10`.
const AVG10: Duration = Duration::from_secs(10);
/// `avg10` is updated every two seconds, and a task above `memory.high` sleeps for at most two seconds between two hits.
const UPDATE_DELAY: Duration = Duration::from_secs(4);

/// The pressure that shows whether a tenant thrashes.
#[derive(Clone, Debug)]
pub struct Pressure {
    /// The tenant's cgroup; in a delegated subtree, its topmost one.
    pub cgroup: Cgroup,
    /// It thrashes at this `full avg10` or more, percent.
    pub full_avg10_max: f64,
    /// The limits within, as known.
    pub own_limits: OwnLimits,
}

/// Hits of limits that a tenant has set itself, from sample to sample.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OwnLimits {
    seen: Option<(Instant, u64)>,
    hit: Option<Instant>,
}

impl Pressure {
    /// The tenant's `full avg10` in percent, if it thrashes. Without PSI that is unknown, and does not count as thrashing.
    ///
    /// # Errors
    /// If the pressure cannot be read for lack of a file descriptor or of memory.
    pub fn thrashing(&mut self, now: Instant) -> Result<Option<f64>> {
        let full = match self.cgroup.pressure(PsiResource::Memory) {
            Ok(psi) => psi.full.avg10,
            Err(error) if error.is_exhausted() => return Err(error),
            Err(_) => return Ok(None),
        };
        // They may not be readable, as in a cgroup that is being removed. Then an earlier hit counts for as long as usual.
        // Otherwise the pressure alone decides.
        let hits = own_hits(&self.cgroup).ok();
        let window = remembered_for(self.full_avg10_max);
        let own = self.own_limits.hit_within(window, hits, now);
        Ok((full >= self.full_avg10_max && !own).then_some(full))
    }
}

impl OwnLimits {
    /// Records the number of hits so far, if it could be read. Returns whether there was one in the last `window`. If the last
    /// sample is older than that, a new hit may be older, too, and does not count.
    fn hit_within(&mut self, window: Duration, hits: Option<u64>, now: Instant) -> bool {
        let recent = |at: Instant| now.saturating_duration_since(at) <= window;
        let Some(hits) = hits else {
            return self.hit.is_some_and(recent);
        };
        if self
            .seen
            .is_some_and(|(at, seen)| recent(at) && hits != seen)
        {
            self.hit = Some(now);
        }
        self.seen = Some((now, hits));
        self.hit.is_some_and(recent)
    }
}

/// How long after the last stall `avg10` can still be `full_avg10_max` percent or more.
fn remembered_for(full_avg10_max: f64) -> Duration {
    AVG10.mul_f64((100.0 / full_avg10_max.clamp(0.1, 100.0)).ln()) + UPDATE_DELAY
}

/// How often tasks in `cgroup` ran into limits that others than the administrator may have set. A hit counts in the cgroup of
/// the limit, and in its ancestors.
fn own_hits(cgroup: &Cgroup) -> Result<u64> {
    let all = cgroup.memory_events()?;
    let mut hits = all.high.saturating_add(all.max);
    let admin = cgroup.file_ownership(Knob::MemoryHigh.file())? == Ownership::Admin;
    if admin {
        let own = cgroup.memory_events_local()?;
        hits = hits.saturating_sub(own.high.saturating_add(own.max));
    }
    Ok(hits.saturating_add(cgroup.swap_high_events()?.unwrap_or(0)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;
    use std::path::{Path, PathBuf};

    use justitia_kernel::cgroup::CgroupFs;

    #[test]
    fn the_average_remembers_a_stall_for_so_long() {
        // From 100 to 60 percent in 5.1 s, and the update delay.
        assert_eq!(remembered_for(60.0).as_millis(), 9108);
        assert_eq!(remembered_for(100.0), UPDATE_DELAY);
    }

    #[test]
    fn hits_count_as_long_as_the_average_remembers_them() {
        let begin = Instant::now();
        let at = |seconds| begin + Duration::from_secs(seconds);
        let window = Duration::from_secs(9);
        let mut own = OwnLimits::default();
        let mut hit = |seconds, hits| own.hit_within(window, Some(hits), at(seconds));
        assert!(!hit(0, 5), "it is not known when");
        assert!(!hit(1, 5));
        assert!(hit(2, 6));
        assert!(hit(11, 6), "the average remembers it");
        assert!(!hit(12, 6));
        assert!(!hit(30, 9), "it is not known when");
        assert!(hit(31, 10));
    }

    /// A cgroup of plain files whose tasks wait nearly all the time.
    struct Fixture {
        _dir: tempfile::TempDir,
        path: PathBuf,
        pressure: Pressure,
        begin: Instant,
    }

    impl Fixture {
        fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("a");
            std::fs::create_dir(&path).unwrap();
            let line = |kind| format!("{kind} avg10=92.00 avg60=9.00 avg300=9.00 total=9\n");
            std::fs::write(path.join("memory.pressure"), line("some") + &line("full")).unwrap();
            std::fs::write(path.join("memory.high"), "max\n").unwrap();
            let fs = CgroupFs::open_fixture(dir.path()).unwrap();
            let fixture = Self {
                pressure: Pressure {
                    cgroup: Cgroup::open_at(&fs, Path::new("a")).unwrap(),
                    full_avg10_max: 60.0,
                    own_limits: OwnLimits::default(),
                },
                _dir: dir,
                path,
                begin: Instant::now(),
            };
            fixture.events(0, 0, 0);
            fixture
        }

        /// Hits of limits in all, of its own, and of `memory.swap.high`.
        fn events(&self, all: u64, own: u64, swap: u64) {
            let write = |file, text: String| std::fs::write(self.path.join(file), text).unwrap();
            write("memory.events", format!("low 0\nhigh {all}\nmax 0\n"));
            write("memory.events.local", format!("low 0\nhigh {own}\nmax 0\n"));
            write(
                "memory.swap.events",
                format!("high {swap}\nmax 0\nfail 0\n"),
            );
        }

        fn thrashes(&mut self, seconds: u64) -> bool {
            let now = self.begin + Duration::from_secs(seconds);
            self.pressure.thrashing(now).unwrap().is_some()
        }
    }

    /// The kernel gives no cgroup more than its ancestors have.
    #[test]
    fn a_minimum_counts_as_far_as_the_topmost_ancestor_has_one() {
        const MIB: u64 = 1 << 20;
        let dir = tempfile::tempdir().unwrap();
        let set = |path: &str, min: &str| {
            let path = dir.path().join(path);
            std::fs::create_dir_all(&path).unwrap();
            std::fs::write(path.join("memory.min"), min).unwrap();
            std::fs::write(path.join("memory.current"), (100 * MIB).to_string()).unwrap();
        };
        let fs = CgroupFs::open_fixture(dir.path()).unwrap();
        let taken = |[top, middle, leaf]: [&str; 3]| {
            set("a", top);
            set("a/b", middle);
            set("a/b/c", leaf);
            let open = |path| Cgroup::open_at(&fs, Path::new(path)).unwrap();
            let request = ReclaimRequest {
                key: Key::Unmanaged,
                target: ReclaimTarget::RootList,
                bytes: 64 * MIB,
                minimums: ["a/b/c", "a/b", "a"].map(open).to_vec(),
                pressure: None,
            };
            request.above_minimums(8 * MIB).unwrap() / MIB
        };
        let (large, half) = ("99614720", "52428800");
        assert_eq!(taken(["0", "0", "0"]), 8);
        // A delegatee's own, below what its operator has not protected.
        assert_eq!(taken(["0", "0", "max"]), 8);
        assert_eq!(taken(["0", large, "max"]), 8);
        assert_eq!(taken([half, "0", "max"]), 8, "no more than the topmost has");
        assert_eq!(taken([large, "0", "0"]), 5);
        assert_eq!(taken(["max", "0", large]), 0);
        assert_eq!(taken([large, "0", "max"]), 5);
    }

    #[test]
    fn pressure_from_limits_of_the_tenant_does_not_count() {
        let mut fixture = Fixture::new();
        assert!(fixture.thrashes(0));
        fixture.events(3, 0, 0);
        assert!(!fixture.thrashes(1), "a limit within");
        fixture.events(3, 0, 2);
        assert!(!fixture.thrashes(10));
        assert!(fixture.thrashes(20), "no hit for long");
    }

    #[test]
    fn pressure_from_a_limit_of_the_administrator_counts() {
        let mut fixture = Fixture::new();
        assert!(fixture.thrashes(0));
        fixture.events(3, 3, 0);
        assert!(fixture.thrashes(1));
        // Unless others than the administrator may set it.
        let high = fixture.path.join("memory.high");
        std::fs::set_permissions(high, std::fs::Permissions::from_mode(0o666)).unwrap();
        assert!(!fixture.thrashes(2));
    }

    #[test]
    fn hits_that_cannot_be_read_are_no_hits() {
        let mut fixture = Fixture::new();
        fixture.events(3, 0, 0);
        assert!(fixture.thrashes(0));
        let (events, aside) = ("memory.events", "aside");
        std::fs::rename(fixture.path.join(events), fixture.path.join(aside)).unwrap();
        assert!(fixture.thrashes(1));
        std::fs::rename(fixture.path.join(aside), fixture.path.join(events)).unwrap();
        assert!(fixture.thrashes(2));
    }

    #[test]
    fn without_psi_or_pressure_no_tenant_thrashes() {
        let mut fixture = Fixture::new();
        fixture.pressure.full_avg10_max = 93.0;
        assert!(!fixture.thrashes(0));
        std::fs::remove_file(fixture.path.join("memory.pressure")).unwrap();
        fixture.pressure.full_avg10_max = 60.0;
        assert!(!fixture.thrashes(1));
    }
}
