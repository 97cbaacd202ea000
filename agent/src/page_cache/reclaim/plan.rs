//! Plans reclaim: how much file pages and anonymous memory to reclaim now, and from which tenants.

use std::cmp::Reverse;

use justitia_api::{AnonymousReason, EstimateBasis, ExcessReason};
use justitia_share::num::{to_f64, to_u64};
use justitia_share::{NodeId, Tree, apportion_reclaim, excess};

use crate::model::{Key, Snapshot, Tenant};
use crate::page_cache::entitlements::{Entitlements, with_slab};

/// Reclaim this much from one tenant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReclaimIntent {
    /// The tenant.
    pub key: Key,
    /// Clean file pages, bytes.
    pub bytes: u64,
    /// The reason.
    pub reason: ExcessReason,
}

/// Less is not worth a system call, bytes. A smaller excess is noise.
const MIN_RECLAIM: u64 = 128 << 10;
/// The most for one intent, bytes: `memory.reclaim` is synchronous, and delays the removal of the cgroup.
const MAX_RECLAIM: u64 = 32 << 20;
/// The most tenants in one plan: each is sampled before, and has a request of its own.
const MAX_TENANTS: u64 = 64;

/// The file pages to reclaim, beyond reclaim in flight, bytes: the missing free memory, or the unmapped page cache above its
/// cap if that is more.
fn file_shortage(snapshot: &Snapshot, entitlements: &Entitlements) -> u64 {
    let over = entitlements.unmapped.as_ref().map_or(0, |cap| cap.over);
    let over = over.saturating_sub(snapshot.memory.reclaim_in_flight);
    shortage(snapshot, entitlements).max(over)
}

/// The missing free memory that no reclaim in flight will bring, bytes.
pub(super) fn shortage(snapshot: &Snapshot, entitlements: &Entitlements) -> u64 {
    let memory = &snapshot.memory;
    entitlements
        .free_headroom
        .saturating_sub(memory.free)
        .saturating_sub(memory.reclaim_in_flight)
}

/// Justitia's reclamation (section III-B3) ahead of the kernel's. When free memory is below the headroom, tenants above their
/// entitlement give back in proportion to their excess, until the headroom is free again. Nothing is taken while memory
/// suffices, nor from tenants within their entitlement, nor below a minimum of theirs or of an ancestor. An inner node's own
/// pages are excess, except for the minimums and the pages in use.
///
/// `swapped_out`: the part of the shortage that anonymous memory covers ([`plan_anonymous`](plan_anonymous)), bytes.
///
/// Slab counts as usage, but is left to kswapd. `memory.reclaim` of a cgroup with mostly slab drops all of it at once, since
/// the kernel does not count slab freed there. Other tenants do not give pages in its place, so free memory falls until kswapd
/// wakes.
#[must_use]
pub fn plan_reclaim(
    snapshot: &Snapshot,
    entitlements: &Entitlements,
    swapped_out: u64,
) -> Vec<ReclaimIntent> {
    let need = file_shortage(snapshot, entitlements).saturating_sub(swapped_out);
    if need == 0 {
        return Vec::new();
    }
    let tenants = &snapshot.tenants;
    let mut taken = vec![0; tenants.len()];
    let mut excess: Vec<u64> = tenants
        .ids()
        .map(|id| reclaimable_excess(snapshot, entitlements, id, &taken))
        .collect();
    let count = (need / MIN_RECLAIM).clamp(1, MAX_TENANTS);
    let order = largest(tenants, &mut excess, count);
    let amounts = apportion_reclaim(need, &excess);
    // Amounts that are too small for a request are added to the next one.
    let mut left = 0;
    let mut intents = Vec::new();
    for id in order {
        let tenant = &tenants[id];
        let excess = excess[id.index()].min(most_at_once(tenant));
        let room = above_minimums(snapshot, id, &taken).min(excess);
        let amount = amounts[id.index()];
        let bytes = room.min(amount.saturating_add(left));
        if bytes == 0 || (bytes < MIN_RECLAIM && bytes < excess) {
            left += room.min(amount);
            continue;
        }
        left -= bytes.saturating_sub(amount);
        for node in tenants.ancestors(id).chain([id]) {
            taken[node.index()] += bytes;
        }
        intents.push(ReclaimIntent {
            key: tenant.key,
            bytes: bytes.min(MAX_RECLAIM),
            reason: ExcessReason {
                usage: tenant.own,
                entitlement: entitlements.entitled[id.index()],
                orphaned: !tenants.is_leaf(id),
                free: snapshot.memory.free,
                free_headroom: entitlements.free_headroom,
            },
        });
    }
    intents
}

/// The tenants to reclaim from now: at most `count`, with the largest excess first. The excess of the others is set to 0.
/// Divided among many, each part would be too small for a request, so the others give the next time.
fn largest(tenants: &Tree<Tenant>, excess: &mut [u64], count: u64) -> Vec<NodeId> {
    let mut order: Vec<NodeId> = tenants.ids().filter(|id| excess[id.index()] > 0).collect();
    order.sort_by_key(|id| Reverse(excess[id.index()]));
    let count = usize::try_from(count).unwrap_or(usize::MAX);
    for id in order.split_off(count.min(order.len())) {
        excess[id.index()] = 0;
    }
    order
}

/// The most for one request, bytes of file pages. The kernel shrinks slab by the scanned part of the lists: with a quarter of
/// the file pages slab stays in proportion.
const fn most_at_once(tenant: &Tenant) -> u64 {
    let file = tenant.own.saturating_sub(tenant.slab);
    if tenant.slab > file / 8 {
        file / 4
    } else {
        file
    }
}

/// A tenant's pages above its entitlement, and above the minimums after `taken`, bytes; 0 if that is too little, or it is
/// exempt.
fn reclaimable_excess(
    snapshot: &Snapshot,
    entitlements: &Entitlements,
    id: NodeId,
    taken: &[u64],
) -> u64 {
    let tenant = &snapshot.tenants[id];
    if tenant.exempt.is_some() {
        return 0;
    }
    let held = tenant.own.saturating_sub(tenant.untargetable);
    let keep = if snapshot.tenants.is_leaf(id) {
        // Pages whose use is unknown are not taken, except for a configured cap.
        let unseen = match entitlements.unmapped {
            None => tenant.unseen,
            Some(_) => 0,
        };
        entitlements.entitled[id.index()]
            .max(tenant.unreclaimable)
            .max(unseen)
    } else {
        own_unreclaimable(snapshot, id, tenant).max(entitlements.orphaned[id.index()])
    };
    let excess = excess(held, keep).min(above_minimums(snapshot, id, taken));
    let noise = if snapshot.tenants.is_leaf(id) {
        keep / 256
    } else {
        0
    };
    if excess < MIN_RECLAIM.max(noise) {
        0
    } else {
        excess
    }
}

/// A tenant's own pages that cannot be reclaimed.
fn own_unreclaimable(snapshot: &Snapshot, id: NodeId, tenant: &Tenant) -> u64 {
    let tenants = &snapshot.tenants;
    tenants
        .children(Some(id))
        .fold(tenant.unreclaimable, |own, child| {
            own.saturating_sub(tenants[child].unreclaimable)
        })
}

/// The cache of a tenant that can be reclaimed before it or an ancestor is below its minimum, bytes; 0 for a tenant that is
/// exempt, as with an excluded cgroup below it, or not in the snapshot.
#[must_use]
pub fn reclaimable_above_minimums(snapshot: &Snapshot, key: Key) -> u64 {
    let mut tenants = snapshot.tenants.iter();
    tenants
        .find(|(_, tenant)| tenant.key == key)
        .filter(|(_, tenant)| tenant.exempt.is_none())
        .map_or(0, |(id, _)| {
            above_minimums(snapshot, id, &vec![0; snapshot.tenants.len()])
        })
}

/// The least that `id` and its ancestors have above their minimums after `taken` (indexed like the tenants).
fn above_minimums(snapshot: &Snapshot, id: NodeId, taken: &[u64]) -> u64 {
    let tenants = &snapshot.tenants;
    let above = |id: NodeId| {
        let kept = tenants[id].minimum.saturating_add(taken[id.index()]);
        tenants[id].cache.saturating_sub(kept)
    };
    tenants
        .ancestors(id)
        .chain([id])
        .map(above)
        .min()
        .unwrap_or(0)
}

// Plans swapping out cold anonymous memory: from which tenant, and how much.
//
// Reclaim of file pages ahead of kswapd keeps kswapd asleep, and with it the kernel's own choice between file pages and
// anonymous memory. This is the same choice for each tenant: anonymous memory covers the part of a shortage that the kernel's
// reclaim would scan (`get_scan_count` in mm/vmscan.c), by the same costs. There are two exceptions: while no file page comes
// back after reclaim, nothing is swapped out; and a tenant whose memory comes back from swap is left alone.

/// Swap out this much of one tenant's anonymous memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AnonymousIntent {
    /// The tenant.
    pub key: Key,
    /// The amount, bytes.
    pub bytes: u64,
    /// The reason.
    pub reason: AnonymousReason,
}

/// The most for one intent, bytes. A request ends when the kernel has found this much, in use or not. A mistake costs no more
/// than this before it shows as memory that comes back.
const MAX_SWAP_OUT: u64 = 4 << 20;
/// A tenant's memory is in use if more than one in this many of the recently swapped out bytes have come back ...
const IN_USE_FRACTION: u64 = 8;
/// ... beyond this many bytes, which any process reads again now and then. Files are in use beyond the same number.
const IN_USE_BYTES: u64 = 1 << 20;

/// The anonymous memory to swap out for the shortage: all of it from the tenant that the kernel would scan most, so that small
/// parts add up to a request. `None` while files do not need it, or without swap space.
#[must_use]
pub fn plan_anonymous(snapshot: &Snapshot, entitlements: &Entitlements) -> Option<AnonymousIntent> {
    let memory = &snapshot.memory;
    let need = shortage(snapshot, entitlements);
    let refaulted = memory.refaulted.min(lacking(snapshot, entitlements));
    let refaulted = refaulted.saturating_sub(IN_USE_BYTES);
    if need == 0 || refaulted == 0 || memory.swappiness == 0 {
        return None;
    }
    let files = to_f64(refaulted);
    let swappiness = f64::from(memory.swappiness);
    // The kernel's smoothed costs: neither kind counts as more than twice as cheap as the other.
    let weight = |tenant: &Tenant| {
        let cost = to_f64(tenant.swapped_out.saturating_add(tenant.swapped_in));
        to_f64(tenant.anon) * swappiness / (2.0 * cost + files)
    };
    let leaves = snapshot.tenants.iter().filter(|(id, tenant)| {
        snapshot.tenants.is_leaf(*id) && tenant.exempt.is_none() && !is_in_use(tenant)
    });
    let weighed: Vec<(f64, &Tenant)> = leaves.map(|(_, tenant)| (weight(tenant), tenant)).collect();
    let anonymous: f64 = weighed.iter().map(|(weight, _)| weight).sum();
    let costs: u64 = weighed
        .iter()
        .map(|(_, t)| t.swapped_out + t.swapped_in)
        .sum();
    let file: u64 = snapshot
        .tenants
        .values()
        .map(|tenant| tenant.own - tenant.slab)
        .sum();
    let file = to_f64(file) * (200.0 - swappiness) / (2.0 * files + to_f64(costs));
    let part = anonymous / (anonymous + file);
    let (_, tenant) = weighed.into_iter().max_by(|a, b| a.0.total_cmp(&b.0))?;
    let bytes = to_u64(to_f64(need) * part)
        .min(tenant.anon)
        .min(MAX_SWAP_OUT);
    (bytes >= MIN_RECLAIM).then_some(AnonymousIntent {
        key: tenant.key,
        bytes,
        reason: AnonymousReason {
            anon: tenant.anon,
            refaulted: memory.refaulted,
            swapped_out: tenant.swapped_out,
            swapped_in: tenant.swapped_in,
        },
    })
}

/// The file pages that tenants use and lack, bytes; of a tenant whose accesses are not sampled, those that it has paged in lately. A loop over more than fits brings pages back, too, but more memory would not keep them: the kernel does not count
/// such refaults either (`workingset_test_recent` in mm/workingset.c).
fn lacking(snapshot: &Snapshot, entitlements: &Entitlements) -> u64 {
    let tenants = &snapshot.tenants;
    let leaves = tenants.iter().filter(|(id, _)| tenants.is_leaf(*id));
    let lacks = leaves.map(|(id, tenant)| match tenant.working_set.evidence {
        EstimateBasis::Lists if tenant.key == Key::Unmanaged && tenant.growing => u64::MAX,
        EstimateBasis::Lists => tenant.paged_in,
        EstimateBasis::Accesses => entitlements.demands[id.index()]
            .in_use
            .saturating_sub(with_slab(tenant, tenant.own - tenant.slab)),
    });
    lacks.fold(0, u64::saturating_add)
}

/// Whether the memory that was swapped out of a tenant comes back.
const fn is_in_use(tenant: &Tenant) -> bool {
    tenant.swapped_in > IN_USE_BYTES + tenant.swapped_out / IN_USE_FRACTION
}
