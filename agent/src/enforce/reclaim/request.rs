//! What is asked of the reclaim threads, and what they report.

use std::time::{Duration, Instant};

use justitia_kernel::Result;
use justitia_kernel::cgroup::Cgroup;
use justitia_kernel::memory::Limit;

use crate::monitor::MemoryCounters;

use super::pressure::{OwnLimits, Pressure};
use crate::model::Key;
use justitia_api::ReclaimExemption;

/// One write of `memory.reclaim` asks for at most this, bytes: a longer one delays the cgroup's removal.
pub(super) const BATCH: u64 = 8 << 20;

/// How file pages are reclaimed from one tenant.
#[derive(Clone, Debug)]
pub enum ReclaimTarget {
    /// `memory.reclaim` of its cgroup, with this `swappiness=` (`None` if the kernel has no such argument).
    Cgroup(Cgroup, Option<u8>),
    /// `memory.reclaim` of a cgroup with this `swappiness=`, for the pages of its own: the kernel skips `children` that are
    /// within their `memory.low`. At the root it does so with the classic LRU only.
    OwnPages {
        /// The cgroup; the root for memory outside of all tenants.
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
    /// How much, bytes.
    pub bytes: u64,
    /// The tenant's cgroup and the ancestors of it, whose `memory.min` the kernel ignores when it is the target of
    /// `memory.reclaim`, or its ancestor's.
    pub minimums: Vec<Cgroup>,
    /// Says whether the tenant thrashes: then nothing is reclaimed. `None` if that is not known.
    pub pressure: Option<Pressure>,
}

impl ReclaimRequest {
    /// So many bytes, or fewer where more would bring a cgroup below the `memory.min` that it has now.
    ///
    /// # Errors
    /// If that cannot be read at this moment. Then nothing may be reclaimed.
    pub(super) fn above_minimums(&self, bytes: u64) -> Result<u64> {
        let mut bytes = bytes;
        for cgroup in &self.minimums {
            let min = match cgroup.memory_min() {
                Ok(Limit::Bytes(0)) => continue,
                Ok(Limit::Bytes(min)) => min,
                Ok(Limit::Max) => return Ok(0),
                Err(error) if error.is_missing() => continue,
                Err(error) => return Err(error),
            };
            bytes = bytes.min(cgroup.memory_current()?.saturating_sub(min));
        }
        Ok(bytes)
    }

    /// Whether the tenant thrashes now, in which case nothing may be reclaimed from it. Notes that in `result`.
    ///
    /// # Errors
    /// If that cannot be read at this moment. Then nothing may be reclaimed from it either.
    pub(super) fn is_thrashing(&self, result: &mut ReclaimResult) -> Result<bool> {
        let Some(mut pressure) = self.pressure.clone() else {
            return Ok(false);
        };
        // What was known before, should nothing be known now.
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
    /// How much was requested, bytes.
    pub requested: u64,
    /// How much was reclaimed, by the tenant's own counters, bytes.
    pub freed: u64,
    /// How much was reclaimed from its children, which was not intended, bytes.
    pub freed_from_children: u64,
    /// The tenant's counters afterwards, if it is a cgroup that still exists.
    pub after: Option<MemoryCounters>,
    /// Why nothing was reclaimed, if so.
    pub exempt: Option<ReclaimExemption>,
    /// What is known of the tenant's own limits.
    pub own_limits: OwnLimits,
    /// The kernel's error, if it refused.
    pub error: Option<String>,
    /// How long it took.
    pub took: Duration,
}

impl ReclaimResult {
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
