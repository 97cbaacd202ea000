//! What is outside any managed cgroup: one more tenant.

use std::path::Path;
use std::time::{Duration, Instant};

use justitia_kernel::cgroup::Cgroup;
use justitia_kernel::lru_gen::{self, LruGen};
use justitia_share::{Weight, num};

use super::memory_sampler::taken_in;
use super::system_memory::SystemMemory;
use crate::model::MAX_RECLAIM_CHILDREN;
use crate::model::{Key, Tenant, WorkingSet};
use justitia_api::ReclaimExemption;

/// What this kernel can do, as far as the page cache is concerned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReclaimFeatures {
    /// `memory.reclaim` exists.
    pub reclaim: bool,
    /// It takes `swappiness=`.
    pub swappiness: bool,
    /// The multi-gen LRU runs.
    pub multi_gen: bool,
    /// Its debugfs interface can be used.
    pub lru_gen: bool,
    /// BFQ schedules a disk.
    pub bfq: bool,
}

impl ReclaimFeatures {
    /// Why nothing may be taken from a tenant with this much anonymous memory, on this kernel.
    #[must_use]
    pub const fn exempts(&self, anon: u64, swap_on: bool) -> Option<ReclaimExemption> {
        match (self.reclaim, self.swappiness) {
            (false, _) => Some(ReclaimExemption::Unsupported),
            (true, true) => None,
            (true, false) if anon > 0 && swap_on => Some(ReclaimExemption::Anonymous),
            (true, false) => None,
        }
    }

    /// The `swappiness=` that keeps reclaim away from anonymous memory.
    #[must_use]
    pub const fn file_only(&self) -> Option<u8> {
        if self.swappiness { Some(0) } else { None }
    }
}

/// The root cgroup's own pages, those of excluded cgroups, and those that cgroups right below the root have left behind
/// when they were removed.
#[derive(Debug)]
pub struct Unmanaged {
    root: Cgroup,
    means: Option<UnmanagedReclaim>,
    /// What it has taken in, when it was last said to have grown ([`super::memory_sampler::taken_in`]).
    taken_in: Option<u64>,
    /// File pages that its living processes have read, at most; the rest is of removed cgroups.
    living: u64,
    /// The most file pages it has had lately: half of it is forgotten each [`RECENT`].
    most: u64,
    summed_at: Option<Instant>,
    grew_at: Instant,
    grows: bool,
}

/// How to reclaim from what is outside alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnmanagedReclaim {
    /// The root cgroup's own list, by the multi-gen LRU's debugfs interface; not what removed cgroups have left.
    RootList,
    /// `memory.reclaim` of the root cgroup: where the classic LRU runs, it passes over cgroups within their `memory.low`.
    Root,
}

/// It is said to grow for this long after it last did.
const GROWING: Duration = Duration::from_secs(3);
/// Less than this is no growth, bytes.
const LEAST_GROWTH: u64 = 4 << 20;
/// How long the most that it has had is remembered.
const RECENT: Duration = Duration::from_secs(10);

impl Unmanaged {
    /// Finds out how it could be reclaimed from.
    #[must_use]
    pub fn new(root: Cgroup, features: &ReclaimFeatures, now: Instant) -> Self {
        let means = if features.multi_gen {
            features.lru_gen.then_some(UnmanagedReclaim::RootList)
        } else {
            let safe = features.reclaim && features.swappiness;
            safe.then_some(UnmanagedReclaim::Root)
        };
        Self {
            root,
            means,
            taken_in: None,
            living: u64::MAX,
            most: 0,
            summed_at: None,
            grew_at: now,
            grows: false,
        }
    }

    /// The root cgroup.
    #[must_use]
    pub const fn root(&self) -> &Cgroup {
        &self.root
    }

    /// How to reclaim from it alone, if this kernel has a way.
    #[must_use]
    pub const fn means(&self) -> Option<UnmanagedReclaim> {
        self.means
    }

    /// What the whole machine has taken in, by the root cgroup's counters.
    pub(super) fn read(&self) -> Option<u64> {
        let stat = self.root.memory_stat().ok()?;
        Some(taken_in(&stat))
    }

    /// Whether it would be said to have grown, had it taken in so much. `noise` is by how much readings differ, bytes.
    pub(super) fn seems_to_grow(&self, taken_in: u64, noise: u64) -> bool {
        let least = LEAST_GROWTH.max(noise);
        self.taken_in
            .is_some_and(|before| taken_in > before.saturating_add(least))
    }

    /// It has taken in so much by now. Where cgroups right below the root have come or gone since (`top_level_changed`), part
    /// of that may be what they have left behind: nobody living asks for it.
    pub(super) fn take(
        &mut self,
        taken_in: u64,
        top_level_changed: bool,
        noise: u64,
        now: Instant,
    ) {
        let before = self.taken_in.unwrap_or(taken_in);
        if top_level_changed {
            self.taken_in = Some(taken_in);
        } else if self.seems_to_grow(taken_in, noise) {
            self.living = self.living.saturating_add(taken_in - before);
            (self.grew_at, self.grows) = (now, true);
            self.taken_in = Some(taken_in);
        } else {
            self.taken_in = Some(taken_in.min(before));
        }
    }

    /// As a tenant: what the machine has and no cgroup in `tenants` does. Its weight bounds what it gets of it, whether
    /// or not it can be reclaimed from: what is beyond that is the kernel's to take, from whom it likes.
    pub fn tenant(
        &mut self,
        memory: &SystemMemory,
        tenants: &[Tenant],
        weight: Weight,
        now: Instant,
        exempt: Option<ReclaimExemption>,
    ) -> Tenant {
        let file = memory
            .file()
            .saturating_sub(tenants.iter().map(|t| t.own).sum());
        let top = || tenants.iter().filter(|t| t.parent.is_none());
        let unreclaimable = memory
            .unreclaimable()
            .saturating_sub(top().map(|t| t.unreclaimable).sum());
        let passed = self.summed_at.map_or(Duration::ZERO, |at| now - at);
        let halves = passed.as_secs_f64() / RECENT.as_secs_f64();
        self.most = file.max(num::to_u64(num::to_f64(self.most) * (-halves).exp2()));
        self.summed_at = Some(now);
        self.living = self.living.min(self.most);
        let orphaned = file.saturating_sub(self.living);
        let idle_for = now.saturating_duration_since(self.grew_at);
        Tenant {
            key: Key::Unmanaged,
            parent: None,
            weight,
            floor: 0,
            requested: 0,
            file,
            own: file,
            orphaned,
            untargetable: match self.means {
                Some(UnmanagedReclaim::RootList) => orphaned,
                Some(UnmanagedReclaim::Root) | None => 0,
            },
            other: 0,
            unreclaimable: unreclaimable.min(file),
            leaf: true,
            populated: true,
            growing: self.grows && idle_for < GROWING,
            idle_for,
            mapped: 0,
            working_set: WorkingSet::default(),
            exempt: match self.means {
                None => Some(ReclaimExemption::Unsupported),
                Some(UnmanagedReclaim::Root) if top().count() > MAX_RECLAIM_CHILDREN => {
                    Some(ReclaimExemption::TooManyChildren)
                }
                Some(_) => exempt,
            },
        }
    }
}

/// Whether the multi-gen LRU's debugfs interface can be used here.
#[must_use]
pub fn lru_gen_usable() -> bool {
    LruGen::read_root(Path::new(lru_gen::PATH)).is_ok_and(|lists| !lists.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use justitia_kernel::cgroup::CgroupFs;

    const MIB: u64 = 1 << 20;

    fn unmanaged(now: Instant) -> Unmanaged {
        let dir = tempfile::tempdir().unwrap();
        let root = CgroupFs::open_fixture(dir.path(), true).unwrap();
        Unmanaged::new(root.root().clone(), &ReclaimFeatures::default(), now)
    }

    #[test]
    fn it_grows_by_what_it_reads_and_not_by_what_is_left_to_it() {
        let t0 = Instant::now();
        let at = |s| t0 + Duration::from_secs(s);
        let mut unmanaged = unmanaged(t0);
        unmanaged.living = 0;
        unmanaged.take(100 * MIB, false, 0, at(0));
        assert!(!unmanaged.grows, "one look shows no growth");
        // A cgroup was removed.
        unmanaged.take(300 * MIB, true, 0, at(1));
        assert!(!unmanaged.grows && unmanaged.living == 0);
        // Less than readings differ by, but it adds up.
        unmanaged.take(303 * MIB, false, 0, at(2));
        assert!(!unmanaged.grows);
        unmanaged.take(306 * MIB, false, 0, at(3));
        assert!(unmanaged.grows && unmanaged.grew_at == at(3));
        assert_eq!(unmanaged.living, 6 * MIB);
        // Tenants whose growth was not known yet are no growth of its own, either before or after.
        unmanaged.take(290 * MIB, false, 0, at(4));
        unmanaged.take(295 * MIB, false, 10 * MIB, at(5));
        assert_eq!((unmanaged.living, unmanaged.grew_at), (6 * MIB, at(3)));
    }
}
