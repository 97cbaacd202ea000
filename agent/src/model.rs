//! The types that the loop's stages exchange. This module depends on none of them.

use std::time::Duration;

use justitia_api::{EstimateBasis, ReclaimExemption};
use justitia_kernel::cgroup::CgroupId;
use justitia_share::curve::HALF_LIFE;
use justitia_share::{HalfLife, Tree, Weight};

/// Cache that a tenant did not use counts as unused after its accesses have been observed for this long: twice the half-life of
/// its miss-ratio curve.
pub const MIN_OBSERVATION: Duration = Duration::from_secs(2 * HALF_LIFE.get().as_secs());

/// The half-life of counts of pages that came back after reclaim. The kernel's own reclaim costs fade as fast: `lru_note_cost`
/// in mm/swap.c halves them when they exceed a quarter of the lists, which takes seconds with gigabytes.
pub const COST_HALF_LIFE: HalfLife = HalfLife::new(Duration::from_secs(10));

/// A cgroup with more children than this is not reclaimed from: each step reads `memory.stat` of every child, to check that
/// reclaim takes nothing from it.
pub const MAX_RECLAIM_CHILDREN: usize = 1000;

/// Identifies a tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Key {
    /// A managed cgroup.
    Cgroup(CgroupId),
    /// Everything outside managed cgroups: the root cgroup's own processes, excluded cgroups, and the remaining charges of
    /// removed top-level cgroups.
    Unmanaged,
}

impl Key {
    /// The cgroup, if it is one.
    #[must_use]
    pub const fn cgroup(self) -> Option<CgroupId> {
        match self {
            Self::Cgroup(id) => Some(id),
            Self::Unmanaged => None,
        }
    }
}

/// The host's memory. Amounts in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// Usable memory (`MemTotal`).
    pub total: u64,
    /// File pages on LRU lists and reclaimable slab.
    pub cache: u64,
    /// Free memory.
    pub free: u64,
    /// Reclaim that was requested and has not finished.
    pub reclaim_in_flight: u64,
    /// The free memory below which kswapd is woken: the sum of the zones' low watermarks and lowmem reserves.
    pub low_watermark: u64,
    /// Once woken, kswapd reclaims up to this much free memory.
    pub high_watermark: u64,
    /// How fast free memory falls, bytes per second.
    pub fall_rate: u64,
    /// How fast reclaim refills free memory, bytes per second: this is consumed as well.
    pub refill_rate: u64,
    /// The recent delay from a sample to the end of the reclaim that the next sample requested.
    pub reaction: Duration,
    /// File pages read again recently after their reclaim (`workingset_refault_file` of the host), decaying by half every
    /// [`COST_HALF_LIFE`].
    pub refaulted: u64,
    /// File pages on LRU lists that no process has mapped, as the kernel counts them for `vm.min_unmapped_ratio`.
    pub unmapped: u64,
    /// Free memory when `unmapped` was read.
    pub free_at_sample: u64,
    /// `vm.swappiness`, 0 to 200; 0 without free swap space, or if anonymous memory is not to be reclaimed.
    pub swappiness: u8,
}

impl Memory {
    /// How fast free memory is consumed, bytes per second. This includes the part that reclaim refills.
    #[must_use]
    pub const fn consumption_rate(&self) -> u64 {
        self.fall_rate.saturating_add(self.refill_rate)
    }
}

/// A tenant as sampled. Amounts in bytes.
#[derive(Clone, Debug, PartialEq)]
pub struct Tenant {
    /// Its identity.
    pub key: Key,
    /// Weight among its siblings.
    pub weight: Weight,
    /// Whether that weight is the default, and only the administrator may make its children: the children then compete with its
    /// siblings ([`Demand::sums_weights`](justitia_share::Demand::sums_weights)).
    pub sums_weights: bool,
    /// Cache that it keeps before any division by weight: the administrator's `memory.min` or `memory.low`, or the configured
    /// minimum.
    pub minimum: u64,
    /// Protection that a delegatee requests inside its delegated subtree. It counts among siblings only. It does not raise the
    /// subtree's entitlement.
    pub requested_protection: u64,
    /// File pages on its LRU lists and reclaimable slab, its descendants' included.
    pub cache: u64,
    /// The part of `cache` that no living child is charged for. For a leaf: all of it. For an inner node: the pages of its own
    /// processes, and those that removed children left.
    pub own: u64,
    /// The part of `own` that is reclaimable slab, such as dentries and inodes.
    pub slab: u64,
    /// The part of `own` that no living process is charged for, and that therefore has no demand. For an inner node: all of it.
    pub orphaned: u64,
    /// The part of `own` of an inner node that is in use: the working sets of recently removed children, which a restarted
    /// service uses again, and the orphaned pages that its children use.
    pub orphaned_in_use: u64,
    /// The part of an inner node's `own` that recently removed children held, and at least `orphaned_in_use`.
    pub orphaned_lately: u64,
    /// The orphaned pages of its parent that it uses.
    pub uses_orphaned: u64,
    /// The part of `own` that this kernel cannot reclaim without reclaiming from other tenants.
    pub untargetable: u64,
    /// Charged memory beside `cache`: anonymous, shared, and kernel memory that cannot be reclaimed.
    pub other: u64,
    /// The cache that its own limits allow (`memory.max`, `memory.high`); `u64::MAX` without one. Ancestors' limits are not
    /// included.
    pub limit: u64,
    /// Anonymous memory above its minimums that may be swapped out, limited by free swap space.
    pub anon: u64,
    /// Memory swapped out of it recently, decaying by half every [`COST_HALF_LIFE`].
    pub swapped_out: u64,
    /// Memory swapped in again recently, decaying likewise.
    pub swapped_in: u64,
    /// File pages that cannot be reclaimed now: dirty or under writeback.
    pub unreclaimable: u64,
    /// Whether any process lives in it or below.
    pub populated: bool,
    /// Whether its cache has grown recently, or would have without reclaim.
    pub growing: bool,
    /// File pages paged in recently, decaying by half every [`COST_HALF_LIFE`].
    pub paged_in: u64,
    /// How long it has used neither CPU nor its working set.
    pub idle_for: Duration,
    /// For how long it has not read its working set, whatever else it did.
    pub unused_for: Duration,
    /// File pages that processes have mapped, at most; the probes do not see accesses to them.
    pub mapped: u64,
    /// File pages from before it was first seen that nothing has replaced since. Their use is unknown. 0 once its accesses have
    /// been observed for [`MIN_OBSERVATION`].
    pub unseen: u64,
    /// Its working set, as far as it is known.
    pub working_set: WorkingSet,
    /// Why nothing may be reclaimed from it now, if so.
    pub exempt: Option<ReclaimExemption>,
}

/// An estimate of a tenant's working set in the page cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorkingSet {
    /// Its size, bytes.
    pub bytes: u64,
    /// How long it was seen to use at most that. With [`EstimateBasis::Accesses`]: how long its accesses have been sampled.
    /// With [`EstimateBasis::Lists`]: how long it has been idle.
    pub observed_for: Duration,
    /// The source of the estimate.
    pub evidence: EstimateBasis,
}

/// The tenants and the memory at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Snapshot {
    /// The host's memory.
    pub memory: Memory,
    /// The tenants. [`Key::Unmanaged`] is the last, right below the root.
    pub tenants: Tree<Tenant>,
}
