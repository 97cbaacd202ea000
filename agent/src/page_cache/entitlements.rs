//! Demands of tenants, and the division of the page cache among them by weight.

use std::time::Duration;

use justitia_api::{DemandModel, RESTS_AFTER};
use justitia_share::{Demand, Tree, Weight, entitlements, num};

use super::unmapped::UnmappedCap;
use crate::model::{Key, MIN_OBSERVATION, Memory, Snapshot, Tenant};

/// Each tenant's entitlement in bytes of cache: file pages and reclaimable slab. The vectors are indexed like
/// [`Snapshot::tenants`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Entitlements {
    /// The memory that is divided: all file pages and reclaimable slab, and the free memory above the headroom. With a cap of
    /// unmapped page cache: at most mapped pages, slab, and the cap.
    pub capacity: u64,
    /// The free memory to keep ([`Policy::free_headroom`]).
    pub free_headroom: u64,
    /// The cap of unmapped page cache, if it and not memory limits the division.
    pub unmapped: Option<UnmappedCap>,
    /// Every tenant's demand.
    pub demands: Vec<Demand>,
    /// Every tenant's entitlement.
    pub entitled: Vec<u64>,
    /// For inner nodes: the part of it for their own orphaned pages.
    pub orphaned: Vec<u64>,
    /// Of leaves: the part of it that is protected from the kernel's reclaim: what the tenant uses, and while that is not known what
    /// it demands; of its slab only what goes with these pages. What an inner node protects is the sum of its leaves'.
    pub protected: Vec<u64>,
}

impl Entitlements {
    /// Divides the page cache: Justitia's threshold (section III-B3, equation 1), hierarchical and work-conserving. First
    /// the working sets in use are served by weight, then those of resting tenants, then other demands.
    #[must_use]
    pub fn of(snapshot: &Snapshot, policy: &Policy) -> Self {
        let tenants = &snapshot.tenants;
        let free_headroom = policy.free_headroom(&snapshot.memory);
        let held: u64 = tenants.values().map(|tenant| tenant.own).sum();
        let fits = held
            .saturating_add(snapshot.memory.free)
            .saturating_sub(free_headroom);
        let unmapped = policy.unmapped_cap(&snapshot.memory).and_then(|cap| {
            let room = policy.unmapped_goal(&snapshot.memory, cap);
            UnmappedCap::of(snapshot, cap, room, fits)
        });
        let divided = unmapped.as_ref().map_or(fits, |cap| cap.room);
        let share = unmanaged_share(snapshot, divided);
        let demands = tenants.map(|id, tenant| demand(tenant, tenants.is_leaf(id), share, policy));
        let (entitled, orphaned) = match &unmapped {
            None => divide(tenants, &demands, divided),
            Some(cap) => {
                let beyond = cap.beyond(tenants, &demands);
                let (mut entitled, orphaned) = divide(tenants, &beyond, divided);
                for (entitled, kept) in entitled.iter_mut().zip(&cap.kept) {
                    *entitled = entitled.saturating_add(*kept);
                }
                (entitled, orphaned)
            }
        };
        let protected = demands
            .values()
            .zip(tenants.values())
            .zip(&entitled)
            .map(|((demand, tenant), entitled)| {
                let known = policy.demand == DemandModel::Use && !is_unsure(tenant);
                let used = demand.working_set.max(demand.minimum);
                let keeps = if known { used } else { demand.total };
                with_slab(tenant, keeps.min(entitled.saturating_sub(tenant.slab))).min(keeps)
            })
            .collect();
        Self {
            capacity: unmapped
                .as_ref()
                .map_or(fits, |cap| cap.kept_in_all.saturating_add(cap.room)),
            free_headroom,
            unmapped,
            demands: demands.values().copied().collect(),
            entitled,
            orphaned,
            protected,
        }
    }
}

/// At most so much slab goes with file pages, one byte to two: inodes and entries of directories, a third of files of 4 KiB; the
/// nodes of their trees, which also remember evicted pages; buffer heads.
const SLAB_OF_FILES: u64 = 2;

/// A tenant's file pages, of which it has so many, and the slab that goes with them. It is part of a working set and of
/// `memory.low`, against which the kernel counts it: else as many file pages would be taken again and again, from a set that
/// rests down to the last one.
pub(super) fn with_slab(tenant: &Tenant, files: u64) -> u64 {
    files.saturating_add(tenant.slab.min(files / SLAB_OF_FILES))
}

/// What each tenant gets, and what orphaned pages get: of a cgroup's as one more child of it; of the unmanaged tenant's as
/// one more top-level cgroup, but it is counted as that tenant's.
fn divide(tenants: &Tree<Tenant>, demands: &Tree<Demand>, capacity: u64) -> (Vec<u64>, Vec<u64>) {
    let mut all = demands.clone();
    let mut of = Vec::new();
    for (id, tenant) in tenants.iter() {
        let below = (!tenants.is_leaf(id)).then_some(id);
        if let Some(demand) = orphaned(tenant)
            && (below.is_some() || tenant.key == Key::Unmanaged)
        {
            all.push(below, demand);
            of.push((id, demand.total));
        }
    }
    let mut entitled = entitlements(&all, capacity);
    let parts = entitled.split_off(tenants.len());
    let mut orphaned = vec![0; tenants.len()];
    for ((id, most), part) in of.into_iter().zip(parts) {
        orphaned[id.index()] = part.min(most);
        if tenants.is_leaf(id) {
            entitled[id.index()] += part.min(most);
        }
    }
    (entitled, orphaned)
}

/// The unmanaged tenant's part of the cache by weight, among top-level tenants that hold or want any.
fn unmanaged_share(snapshot: &Snapshot, capacity: u64) -> u64 {
    let tenants = &snapshot.tenants;
    let top_level = || tenants.children(None).map(|id| &tenants[id]);
    let competes = |tenant: &&Tenant| tenant.populated || tenant.cache > 0;
    let all: u64 = top_level()
        .filter(competes)
        .map(|tenant| tenant.weight.get())
        .sum();
    let unmanaged = top_level().find(|tenant| tenant.key == Key::Unmanaged);
    let weight = unmanaged.map_or(0, |tenant| tenant.weight.get());
    let share = u128::from(capacity) * u128::from(weight) / u128::from(all.max(1));
    u64::try_from(share).unwrap_or(u64::MAX)
}

/// A tenant's demand. `leaf`: it has no children. `share`: the unmanaged tenant's part of the cache by weight, bytes. Orphaned
/// pages demand nothing unless they are in use ([`orphaned`]).
///
/// - No demand exceeds the tenant's own limits.
/// - A working set is the curve's size and the mapped pages. Its part that the tenant does not hold is at most the recent
///   page-ins: without misses a tenant needs no more than it has.
/// - Pages from before the observation of accesses count as used until the accesses have been observed long enough.
/// - Where accesses cannot be seen, growth is the only sign of use. The unmanaged tenant is entitled to its share while it
///   grows, and to its pages for two minutes after.
/// - Slab is no working set, except for the little that goes with file pages: it is divided like data that is read once.
pub(super) fn demand(tenant: &Tenant, leaf: bool, share: u64, policy: &Policy) -> Demand {
    // An inner node's unreclaimable pages are its leaves'.
    let unreclaimable = if leaf { tenant.unreclaimable } else { 0 };
    let minimum = tenant.minimum.min(tenant.cache).max(unreclaimable);
    let held = tenant.own.saturating_sub(tenant.orphaned);
    let keeps = if policy.demand == DemandModel::Usage || is_unsure(tenant) {
        held
    } else {
        0
    };
    let working_set = match policy.demand {
        DemandModel::Use => working_set(tenant, held.saturating_sub(tenant.slab), share),
        DemandModel::Usage => 0,
    };
    let (working_set, total) = match (leaf, tenant.populated) {
        (false, _) => (0, u64::MAX),
        (true, false) => (0, 0),
        (true, true) if tenant.growing => (working_set, u64::MAX),
        (true, true) => (working_set, working_set.max(keeps)),
    };
    let working_set = working_set.min(tenant.limit);
    // The probes do not see accesses to mapped pages: they are in use unless nothing runs. What is unseen counts as used.
    let in_use = match (rests(tenant.unused_for), rests(tenant.idle_for)) {
        (false, _) => working_set,
        (true, false) => working_set.min(tenant.mapped),
        (true, true) => 0,
    };
    let in_use = in_use.max(tenant.unseen.min(working_set));
    Demand {
        weight: tenant.weight,
        sums_weights: !leaf && tenant.sums_weights,
        minimum,
        in_use,
        requested_protection: tenant.requested_protection.min(tenant.cache),
        working_set,
        total: total.min(tenant.limit).max(minimum),
    }
}

/// Whether the accesses of a tenant have not been observed for long enough to tell what it uses.
fn is_unsure(tenant: &Tenant) -> bool {
    tenant.working_set.observed_for < MIN_OBSERVATION
}

/// Whether a tenant that has been idle for this time rests: none of its working set is in use.
fn rests(idle_for: Duration) -> bool {
    idle_for.as_secs_f64() >= RESTS_AFTER
}

/// What the orphaned pages of an inner node demand, as one more child of it: those in use are a working set, and what
/// children held that were removed lately is not taken before other data without use. `None` if that is nothing.
pub(super) fn orphaned(tenant: &Tenant) -> Option<Demand> {
    (tenant.orphaned_lately > 0).then(|| Demand {
        in_use: tenant.orphaned_in_use,
        working_set: tenant.orphaned_in_use,
        total: tenant.orphaned_lately,
        ..Demand::unlimited(Weight::default())
    })
}

/// A tenant's working set, if it holds `file` bytes of file pages; bytes.
fn working_set(tenant: &Tenant, file: u64, share: u64) -> u64 {
    if tenant.key == Key::Unmanaged {
        return match (tenant.growing, tenant.idle_for < MIN_OBSERVATION) {
            (true, _) => share,
            (false, true) => file.min(share),
            (false, false) => 0,
        };
    }
    let read = tenant
        .working_set
        .bytes
        .saturating_sub(tenant.uses_orphaned);
    let used = read.saturating_add(tenant.mapped.min(file));
    let reached = if tenant.growing { tenant.paged_in } else { 0 };
    let used = used.min(file.saturating_add(reached));
    with_slab(tenant, used.max(tenant.unseen.min(file)))
}

/// Reactions longer than this do not increase the free headroom further.
pub(super) const LONGEST_REACTION: Duration = Duration::from_secs(1);

/// The constants of the planners. The defaults suit every machine that we know. The configuration can change those that are a
/// matter of choice.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Policy {
    /// The part of its cache that a tenant demands. Default: the part that it uses.
    pub demand: DemandModel,
    /// Reclaim begins when the current fall of free memory would wake kswapd within this time. Default 200 ms: the time to
    /// notice and answer a burst of allocations.
    pub horizon: Duration,
    /// Memory that reclaim refills as fast as it is consumed is kept free for the duration of a [reaction](Memory::reaction),
    /// within these bounds. Default 100 ms, two ticks under pressure, to a second. Working sets that do not fit lack this
    /// memory.
    pub reaction: (Duration, Duration),
    /// The part of memory that unmapped page cache may take, percent; `None` without a cap, the default.
    pub unmapped_max: Option<f64>,
    /// The part of memory that reclaimable slab may take, percent; `None` without a cap, the default.
    pub slab_max: Option<f64>,
    /// Nothing is reclaimed from a tenant with this memory pressure (PSI `full avg10`) or more, percent. Default 60.
    pub full_avg10_max: f64,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            demand: DemandModel::Use,
            horizon: Duration::from_millis(200),
            reaction: (Duration::from_millis(100), LONGEST_REACTION),
            unmapped_max: None,
            slab_max: None,
            full_avg10_max: 60.0,
        }
    }
}

impl Policy {
    /// The free memory to keep, bytes. Below it the agent reclaims from tenants above their entitlements.
    ///
    /// kswapd wakes below the low watermark and reclaims up to the high one. So the kernel alone keeps the middle of both free
    /// on average, which is the least headroom. Above the low watermark, the memory that will be consumed before a refill is
    /// kept free if that is more: at least 0.4 % and at most 6 % of cache and free memory. Otherwise kswapd, not the agent,
    /// would choose the pages. The headroom is taken from excess only, so it costs no tenant its entitlement.
    #[must_use]
    pub fn free_headroom(&self, memory: &Memory) -> u64 {
        let falls = num::to_f64(memory.fall_rate) * self.horizon.as_secs_f64();
        let reaction = memory.reaction.clamp(self.reaction.0, self.reaction.1);
        let refilled = num::to_f64(memory.refill_rate) * reaction.as_secs_f64();
        // Memory consumed between two refills shows both as fall and as refill, so the larger counts. A fraction of all memory
        // would be most of a cache that is small beside anonymous memory or huge pages.
        let divided = memory.cache.saturating_add(memory.free);
        let ahead = num::to_u64(falls.max(refilled)).clamp(divided / 256, divided / 16);
        let gap = memory.high_watermark.saturating_sub(memory.low_watermark);
        memory.low_watermark.saturating_add(ahead.max(gap / 2))
    }
}

/// Bytes that a fast disk reads in a tick. More would be taken from the tenants' part of the cap.
const MAX_AHEAD: u64 = 16 << 20;

impl Policy {
    /// The cap of unmapped page cache, bytes; `None` without one.
    #[must_use]
    pub fn unmapped_cap(&self, memory: &Memory) -> Option<u64> {
        let percent = self.unmapped_max?;
        Some(num::to_u64(num::to_f64(memory.total) * percent / 100.0))
    }

    /// The bytes that may be read before the cap is reached; `None` without a cap. Unmapped page cache is counted when
    /// everything is sampled. Since then it has grown by at most the fall of free memory.
    #[must_use]
    pub fn unmapped_room(&self, memory: &Memory) -> Option<u64> {
        let cap = self.unmapped_cap(memory)?;
        let since = memory.free_at_sample.saturating_sub(memory.free);
        let goal = self.unmapped_goal(memory, cap);
        Some(goal.saturating_sub(memory.unmapped.saturating_add(since)))
    }

    /// The target of reclaiming unmapped page cache, bytes. It is below the cap by the amount read before the agent can reclaim
    /// again, but by no more than half of the cap.
    fn unmapped_goal(&self, memory: &Memory, cap: u64) -> u64 {
        let reaction = memory.reaction.clamp(self.reaction.0, self.reaction.1);
        let read = num::to_f64(memory.consumption_rate()) * reaction.as_secs_f64();
        cap - num::to_u64(read).min(cap / 2).min(MAX_AHEAD)
    }

    /// The cap of reclaimable slab, bytes; `None` without one.
    #[must_use]
    pub fn slab_cap(&self, memory: &Memory) -> Option<u64> {
        let percent = self.slab_max?;
        Some(num::to_u64(num::to_f64(memory.total) * percent / 100.0))
    }
}
