//! The types that the stages of the loop hand to each other. This module depends on none of them.

use std::time::Duration;

use justitia_api::{EstimateBasis, ReclaimExemption};
use justitia_kernel::cgroup::CgroupId;
use justitia_share::curve::HALF_LIFE;
use justitia_share::{HalfLife, Tree, Weight};

/// How long a tenant's accesses must have been observed before the part of its cache that it did not use counts as
/// unused: twice the half-life of its miss-ratio curve.
pub const MIN_OBSERVATION: Duration = Duration::from_secs(2 * HALF_LIFE.get().as_secs());

/// Counts of pages that came back after reclaim halve in this time, as the kernel's own costs of reclaim fade (`lru_note_cost`
/// in mm/swap.c halves them when they exceed a quarter of the lists; with gigabytes that takes seconds).
pub const COST_HALF_LIFE: HalfLife = HalfLife::new(Duration::from_secs(10));

/// A cgroup with more children than this is not reclaimed from: each step reads `memory.stat` of every child, to see that
/// reclaim takes nothing from it.
pub const MAX_RECLAIM_CHILDREN: usize = 1000;

/// Which tenant this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Key {
    /// A managed cgroup.
    Cgroup(CgroupId),
    /// Everything in no managed cgroup: the root cgroup's own processes, excluded cgroups, and what removed top-level
    /// cgroups left.
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
    /// kswapd, once it has woken, reclaims up to this much free memory.
    pub high_watermark: u64,
    /// How fast free memory falls, bytes per second.
    pub fall_rate: u64,
    /// How fast reclaim refills it, bytes per second: that much is consumed as well.
    pub refill_rate: u64,
    /// How long it lately took from a sample until what the next one asked for was reclaimed.
    pub reaction: Duration,
    /// File pages that were read again lately after they had been reclaimed (`workingset_refault_file` of the host),
    /// decaying by half every [`COST_HALF_LIFE`].
    pub refaulted: u64,
    /// File pages on LRU lists that no process has mapped, as the kernel counts them for `vm.min_unmapped_ratio`.
    pub unmapped: u64,
    /// Free memory when that was read.
    pub free_at_sample: u64,
    /// `vm.swappiness`, 0 to 200; 0 where there is no swap space left, or anonymous memory is not to be reclaimed.
    pub swappiness: u8,
}

impl Memory {
    /// How fast free memory is consumed, bytes per second, whether or not reclaim refills it.
    #[must_use]
    pub const fn consumption_rate(&self) -> u64 {
        self.fall_rate.saturating_add(self.refill_rate)
    }
}

/// A tenant as sampled. Amounts in bytes.
#[derive(Clone, Debug, PartialEq)]
pub struct Tenant {
    /// Which one.
    pub key: Key,
    /// Weight among its siblings.
    pub weight: Weight,
    /// Whether that weight is the default, and only the administrator may make its children: these then compete with its siblings
    /// ([`Demand::sums_weights`](justitia_share::Demand::sums_weights)).
    pub sums_weights: bool,
    /// Cache that it keeps before anything is divided by weight: the administrator's `memory.min` or `memory.low`, or the
    /// configured minimum.
    pub minimum: u64,
    /// Protection that a delegatee requests inside its delegated subtree. It counts among siblings only, and does not
    /// raise what the subtree gets.
    pub requested_protection: u64,
    /// File pages on its LRU lists and reclaimable slab, its descendants' included.
    pub cache: u64,
    /// The part of `cache` that is charged to none of its living children: all of it for a leaf. For an inner node, what
    /// its own processes read, and what removed children left behind.
    pub own: u64,
    /// The part of `own` that is reclaimable slab, such as dentries and inodes.
    pub slab: u64,
    /// The part of `own` that no living process stands for, and that therefore has no demand: all of it for an inner
    /// node.
    pub orphaned: u64,
    /// The part of `own` of an inner node that is in use: the working set of a child that was removed lately, which a service
    /// that is restarted uses again; and what its children use of it.
    pub orphaned_in_use: u64,
    /// The part of `own` of an inner node that children held which were removed lately, at least what is in use.
    pub orphaned_lately: u64,
    /// The orphaned pages of its parent that it uses.
    pub uses_orphaned: u64,
    /// The part of `own` that this kernel cannot reclaim without reclaiming from other tenants.
    pub untargetable: u64,
    /// Charged memory beside `cache`: anonymous, shared, and kernel memory that cannot be reclaimed.
    pub other: u64,
    /// The cache that its limits leave to it (`memory.max`, `memory.high`); `u64::MAX` without one. Its ancestors' limits
    /// are theirs.
    pub limit: u64,
    /// Anonymous memory that may be swapped out: as much of it as there is swap for, above its minimums.
    pub anon: u64,
    /// Memory that was swapped out of it lately, decaying by half every [`COST_HALF_LIFE`].
    pub swapped_out: u64,
    /// Memory that was swapped in again lately, decaying likewise.
    pub swapped_in: u64,
    /// File pages that cannot be reclaimed now: dirty or under writeback.
    pub unreclaimable: u64,
    /// Whether any process lives in it or below.
    pub populated: bool,
    /// Whether its cache has grown lately, or would have without reclaim.
    pub growing: bool,
    /// File pages that it has paged in lately, decaying by half every [`COST_HALF_LIFE`].
    pub paged_in: u64,
    /// For how long it has used neither CPU nor its working set.
    pub idle_for: Duration,
    /// For how long it has not read its working set, whatever else it did.
    pub unused_for: Duration,
    /// File pages that processes have mapped, at most; the probes do not see accesses to them.
    pub mapped: u64,
    /// File pages that it had when it was first seen, and that nothing has replaced since; 0 once its accesses have been
    /// observed for [`MIN_OBSERVATION`]. Whether they are used is not known.
    pub unseen: u64,
    /// Its working set, as far as that is known.
    pub working_set: WorkingSet,
    /// Why nothing may be reclaimed from it now, if so.
    pub exempt: Option<ReclaimExemption>,
}

/// An estimate of a tenant's working set in the page cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorkingSet {
    /// Its size, bytes.
    pub bytes: u64,
    /// For how long it was seen to use no more than that: with [`EstimateBasis::Accesses`], how long its accesses have been
    /// sampled; with [`EstimateBasis::Lists`], how long it has been idle.
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
