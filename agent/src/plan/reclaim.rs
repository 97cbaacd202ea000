//! Which tenants give back file pages now, and how many.

use justitia_api::ExcessReason;
use justitia_share::{NodeId, apportion_reclaim, excess};

use super::entitlements::Entitlements;
use crate::model::{Key, Snapshot, Tenant};

/// Reclaim this much from one tenant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReclaimIntent {
    /// From which tenant.
    pub key: Key,
    /// How many bytes of clean file pages.
    pub bytes: u64,
    /// The facts behind it.
    pub reason: ExcessReason,
}

/// Less is not worth a system call, bytes. An excess below this is noise.
pub const MIN_RECLAIM: u64 = 128 << 10;
/// The most that one intent asks for, bytes: `memory.reclaim` is synchronous, and delays the removal of the cgroup.
pub const MAX_RECLAIM: u64 = 32 << 20;

/// The free memory that is missing, and that no reclaim under way will bring, bytes.
pub(super) fn shortage(snapshot: &Snapshot, entitlements: &Entitlements) -> u64 {
    let memory = &snapshot.memory;
    entitlements
        .free_headroom
        .saturating_sub(memory.free)
        .saturating_sub(memory.reclaim_in_flight)
}

/// Justitia's reclamation (section III-B3) ahead of the kernel's. When free memory is below the headroom, tenants above
/// their entitlement give back in proportion to their excess, until the headroom is free again. Nothing is taken while
/// memory suffices, nor from tenants within their entitlement, nor below a minimum of theirs or of an ancestor. What an
/// inner node has of its own is excess, down to the minimums and to what is in use of it.
///
/// `swapped_out`: the part of the shortage that anonymous memory gives ([`plan_anonymous`](super::plan_anonymous)), bytes.
///
/// Slab counts as usage, but is left to kswapd: `memory.reclaim` of a cgroup that has little else drops all of it at once,
/// since the kernel does not count what it frees there. What others would have to give in its place is not taken from
/// them, so free memory falls until kswapd wakes.
#[must_use]
pub fn plan_reclaim(
    snapshot: &Snapshot,
    entitlements: &Entitlements,
    swapped_out: u64,
) -> Vec<ReclaimIntent> {
    let need = shortage(snapshot, entitlements).saturating_sub(swapped_out);
    if need == 0 {
        return Vec::new();
    }
    let tenants = &snapshot.tenants;
    let mut taken = vec![0; tenants.len()];
    let excess: Vec<u64> = tenants
        .ids()
        .map(|id| reclaimable_excess(snapshot, entitlements, id, &taken))
        .collect();
    let amounts = apportion_reclaim(need, &excess);
    let mut intents = Vec::new();
    for ((id, tenant), amount) in tenants.iter().zip(amounts) {
        let excess = excess[id.index()].min(most_at_once(tenant));
        let bytes = above_minimums(snapshot, id, &taken).min(amount).min(excess);
        if excess == 0 || (bytes < MIN_RECLAIM && bytes < excess) {
            continue;
        }
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

/// The most that one request may ask of a tenant, bytes of file pages. The kernel shrinks slab by the part of the lists
/// that it scans: with a quarter of them that stays in proportion.
const fn most_at_once(tenant: &Tenant) -> u64 {
    let file = tenant.own.saturating_sub(tenant.slab);
    if tenant.slab > file / 8 {
        file / 4
    } else {
        file
    }
}

/// What a tenant has above what it keeps, and above the minimums with what is `taken` already, bytes; 0 if that is too
/// little to matter, or it is exempt.
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
        // Of what nobody has seen used or unused yet, nothing is taken.
        entitlements.entitled[id.index()]
            .max(tenant.unreclaimable)
            .max(tenant.unseen)
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

/// What cannot be reclaimed of a tenant's own pages.
fn own_unreclaimable(snapshot: &Snapshot, id: NodeId, tenant: &Tenant) -> u64 {
    let tenants = &snapshot.tenants;
    tenants
        .children(Some(id))
        .fold(tenant.unreclaimable, |own, child| {
            own.saturating_sub(tenants[child].unreclaimable)
        })
}

/// How much cache of a tenant can be reclaimed before it or an ancestor is below its minimum, bytes; 0 for a tenant
/// that is exempt from reclaim, as one with an excluded cgroup below it is, or not in the snapshot.
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

/// What `id` and its ancestors have above their minimums, less what is `taken` from each (indexed like the tenants).
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
