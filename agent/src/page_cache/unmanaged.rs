//! The unmanaged tenant: all memory outside managed cgroups; and the kernel's reclaim features, which decide how it can be
//! reclaimed.

use std::path::Path;
use std::time::{Duration, Instant};

use justitia_api::ReclaimExemption;
use justitia_kernel::cgroup::Cgroup;
use justitia_kernel::lru_gen;
use justitia_kernel::lru_gen::LruGen;
use justitia_share::{HalfLife, Tree, Weight, num};

use super::system_memory::SystemMemory;
use crate::model::{Key, MAX_RECLAIM_CHILDREN, Tenant, WorkingSet};

/// It counts as growing for this long after its last growth.
const GROWING: Duration = Duration::from_secs(3);
/// Less growth is ignored, bytes.
const MIN_GROWTH: u64 = 4 << 20;
/// The half-life of the peak of its file pages.
const PEAK_HALF_LIFE: HalfLife = HalfLife::new(Duration::from_secs(10));

/// The pages of the root cgroup itself, of excluded cgroups, and of removed top-level cgroups.
#[derive(Debug)]
pub struct Unmanaged {
    root: Cgroup,
    reclaim: Option<UnmanagedReclaim>,
    /// Its page-ins at its last growth, bytes.
    paged_in: Option<u64>,
    /// An upper bound of the file pages that its living processes read, bytes; the others are of removed cgroups.
    live_file: u64,
    /// The peak of its file pages, decaying, bytes.
    peak_file: u64,
    peak_at: Option<Instant>,
    grew_at: Instant,
    grew: bool,
}

/// How to reclaim from unmanaged pages alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnmanagedReclaim {
    /// From the root cgroup's own list, by the debugfs interface of the multi-gen LRU. It does not reach pages of removed
    /// cgroups.
    RootLruGen,
    /// By `memory.reclaim` of the root cgroup. With the classic LRU it skips cgroups within their `memory.low`.
    RootMemoryReclaim,
}

impl UnmanagedReclaim {
    /// The best way with these features, if any.
    fn with(features: &ReclaimFeatures) -> Option<Self> {
        if features.multi_gen {
            features.lru_gen.then_some(Self::RootLruGen)
        } else {
            let safe = features.reclaim && features.swappiness;
            safe.then_some(Self::RootMemoryReclaim)
        }
    }
}

impl Unmanaged {
    /// `root` is the root cgroup.
    #[must_use]
    pub fn new(root: Cgroup, features: &ReclaimFeatures, now: Instant) -> Self {
        Self {
            root,
            reclaim: UnmanagedReclaim::with(features),
            paged_in: None,
            live_file: u64::MAX,
            peak_file: 0,
            peak_at: None,
            grew_at: now,
            grew: false,
        }
    }

    /// Adopts changed features.
    pub(crate) fn set_features(&mut self, features: &ReclaimFeatures) {
        self.reclaim = UnmanagedReclaim::with(features);
    }

    /// The root cgroup.
    #[must_use]
    pub const fn root(&self) -> &Cgroup {
        &self.root
    }

    /// How to reclaim from it alone; `None` if this kernel cannot.
    #[must_use]
    pub const fn reclaim(&self) -> Option<UnmanagedReclaim> {
        self.reclaim
    }

    /// Whether a total of `paged_in` bytes would count as growth. `noise`: the difference between readings, bytes.
    pub(crate) fn has_grown(&self, paged_in: u64, noise: u64) -> bool {
        let least = MIN_GROWTH.max(noise);
        self.paged_in
            .is_some_and(|before| paged_in > before.saturating_add(least))
    }

    /// Records its page-ins so far. If top-level cgroups were added or removed since (`top_level_changed`), part of them may be
    /// pages of removed cgroups, which no living process uses.
    pub(crate) fn record(
        &mut self,
        paged_in: u64,
        top_level_changed: bool,
        noise: u64,
        now: Instant,
    ) {
        let before = self.paged_in.unwrap_or(paged_in);
        if top_level_changed {
            self.paged_in = Some(paged_in);
        } else if self.has_grown(paged_in, noise) {
            self.live_file = self.live_file.saturating_add(paged_in - before);
            (self.grew_at, self.grew) = (now, true);
            self.paged_in = Some(paged_in);
        } else {
            self.paged_in = Some(paged_in.min(before));
        }
    }

    /// The tenant: the host's memory minus that of `tenants`. Its weight bounds its entitlement even if it cannot be reclaimed
    /// from; then its excess is left to the kernel's own reclaim.
    pub fn tenant(
        &mut self,
        memory: &SystemMemory,
        tenants: &Tree<Tenant>,
        weight: Weight,
        now: Instant,
        exempt: Option<ReclaimExemption>,
    ) -> Tenant {
        let cache = memory
            .cache()
            .saturating_sub(tenants.values().map(|t| t.own).sum());
        let slab = memory
            .slab()
            .saturating_sub(tenants.values().map(|t| t.slab).sum())
            .min(cache);
        let file = cache - slab;
        let top_level = || tenants.children(None).map(|id| &tenants[id]);
        let unreclaimable = memory
            .unreclaimable()
            .saturating_sub(top_level().map(|t| t.unreclaimable).sum());
        self.update_peak(file, now);
        self.live_file = self.live_file.min(self.peak_file);
        let orphaned = file.saturating_sub(self.live_file);
        let idle_for = now.saturating_duration_since(self.grew_at);
        Tenant {
            key: Key::Unmanaged,
            weight,
            sums_weights: false,
            minimum: 0,
            requested_protection: 0,
            cache,
            own: cache,
            slab,
            orphaned,
            orphaned_in_use: 0,
            orphaned_lately: 0,
            uses_orphaned: 0,
            untargetable: match self.reclaim {
                Some(UnmanagedReclaim::RootLruGen) => orphaned + slab,
                Some(UnmanagedReclaim::RootMemoryReclaim) | None => 0,
            },
            other: 0,
            limit: u64::MAX,
            anon: 0,
            swapped_out: 0,
            swapped_in: 0,
            unreclaimable: unreclaimable.min(file),
            populated: true,
            growing: self.grew && idle_for < GROWING,
            paged_in: 0,
            idle_for,
            unused_for: idle_for,
            mapped: 0,
            unseen: 0,
            working_set: WorkingSet::default(),
            exempt: match self.reclaim {
                None => Some(ReclaimExemption::Unsupported),
                Some(UnmanagedReclaim::RootMemoryReclaim)
                    if top_level().count() > MAX_RECLAIM_CHILDREN =>
                {
                    Some(ReclaimExemption::TooManyChildren)
                }
                Some(_) => exempt,
            },
        }
    }

    fn update_peak(&mut self, file: u64, now: Instant) {
        let passed = self.peak_at.map_or(Duration::ZERO, |at| now - at);
        let decayed = num::to_u64(num::to_f64(self.peak_file) * PEAK_HALF_LIFE.decay(passed));
        self.peak_file = file.max(decayed);
        self.peak_at = Some(now);
    }
}

/// Whether the debugfs interface of the multi-gen LRU can be used here.
#[must_use]
pub fn lru_gen_usable() -> bool {
    LruGen::read_root(Path::new(lru_gen::PATH)).is_ok_and(|lists| !lists.is_empty())
}

/// The kernel features that reclaim from tenants depends on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReclaimFeatures {
    /// `memory.reclaim` exists.
    pub reclaim: bool,
    /// It takes `swappiness=`.
    pub swappiness: bool,
    /// The multi-gen LRU is on.
    pub multi_gen: bool,
    /// The debugfs interface of the multi-gen LRU can be used.
    pub lru_gen: bool,
    /// BFQ is the scheduler of a disk, so `io.bfq.weight` is in effect.
    pub bfq: bool,
}

impl ReclaimFeatures {
    /// Why nothing may be reclaimed from a tenant with `anon` bytes of anonymous memory, if so.
    #[must_use]
    pub const fn exempts(&self, anon: u64, swap_on: bool) -> Option<ReclaimExemption> {
        match (self.reclaim, self.swappiness) {
            (false, _) => Some(ReclaimExemption::Unsupported),
            (true, true) => None,
            (true, false) if anon > 0 && swap_on => Some(ReclaimExemption::Anonymous),
            (true, false) => None,
        }
    }

    /// The `swappiness=` that restricts reclaim to file pages; `None` if the kernel has no such argument.
    #[must_use]
    pub const fn file_only(&self) -> Option<u8> {
        if self.swappiness { Some(0) } else { None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use justitia_kernel::cgroup::CgroupFs;

    const MIB: u64 = 1 << 20;

    fn unmanaged(now: Instant) -> Unmanaged {
        let dir = tempfile::tempdir().unwrap();
        let root = CgroupFs::open_fixture(dir.path()).unwrap();
        Unmanaged::new(root.root().clone(), &ReclaimFeatures::default(), now)
    }

    #[test]
    fn unmanaged_grows_by_its_own_reads_and_not_by_removed_cgroups() {
        let t0 = Instant::now();
        let at = |s| t0 + Duration::from_secs(s);
        let mut unmanaged = unmanaged(t0);
        unmanaged.live_file = 0;
        unmanaged.record(100 * MIB, false, 0, at(0));
        assert!(!unmanaged.grew, "one sample shows no growth");
        // A cgroup was removed.
        unmanaged.record(300 * MIB, true, 0, at(1));
        assert!(!unmanaged.grew && unmanaged.live_file == 0);
        // Less than readings differ by, but it adds up.
        unmanaged.record(303 * MIB, false, 0, at(2));
        assert!(!unmanaged.grew);
        unmanaged.record(306 * MIB, false, 0, at(3));
        assert!(unmanaged.grew && unmanaged.grew_at == at(3));
        assert_eq!(unmanaged.live_file, 6 * MIB);
        // Tenants whose growth was not known yet are no growth of its own, either before or after.
        unmanaged.record(290 * MIB, false, 0, at(4));
        unmanaged.record(295 * MIB, false, 10 * MIB, at(5));
        assert_eq!((unmanaged.live_file, unmanaged.grew_at), (6 * MIB, at(3)));
    }
}
