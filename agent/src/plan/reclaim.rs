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

/// Justitia's reclamation (section III-B3) ahead of the kernel's. When free memory is below the headroom, tenants above
/// their entitlement give back in proportion to their excess, until the headroom is free again. Nothing is taken while
/// memory suffices, nor from tenants within their entitlement. What an inner node has of its own is excess, down to the
/// minimums of the node and its ancestors.
#[must_use]
pub fn plan_reclaim(snapshot: &Snapshot, entitlements: &Entitlements) -> Vec<ReclaimIntent> {
    let memory = &snapshot.memory;
    let need = entitlements
        .free_headroom
        .saturating_sub(memory.free)
        .saturating_sub(memory.reclaim_in_flight);
    if need == 0 {
        return Vec::new();
    }
    let tenants = &snapshot.tenants;
    let excess: Vec<u64> = tenants
        .iter()
        .map(|(id, tenant)| reclaimable_excess(snapshot, entitlements, id, tenant))
        .collect();
    let amounts = apportion_reclaim(need, &excess);
    tenants
        .iter()
        .zip(amounts)
        .filter(|((id, _), bytes)| {
            let excess = excess[id.index()];
            excess > 0 && (*bytes >= MIN_RECLAIM || *bytes == excess)
        })
        .map(|((id, tenant), bytes)| ReclaimIntent {
            key: tenant.key,
            bytes: bytes.min(MAX_RECLAIM),
            reason: ExcessReason {
                usage: tenant.own,
                entitlement: entitlements.entitled[id.index()],
                orphaned: !tenants.is_leaf(id),
                free: memory.free,
                free_headroom: entitlements.free_headroom,
            },
        })
        .collect()
}

/// What may be reclaimed from a tenant, bytes; 0 if that is too little to matter.
fn reclaimable_excess(
    snapshot: &Snapshot,
    entitlements: &Entitlements,
    id: NodeId,
    tenant: &Tenant,
) -> u64 {
    if tenant.exempt.is_some() {
        return 0;
    }
    let held = tenant.own.saturating_sub(tenant.untargetable);
    let (excess, keep) = if snapshot.tenants.is_leaf(id) {
        let keep = entitlements.entitled[id.index()]
            .max(tenant.minimum)
            .max(tenant.unreclaimable);
        (excess(held, keep), keep)
    } else {
        let excess = excess(held, own_unreclaimable(snapshot, id, tenant));
        (excess.min(above_minimums(snapshot, id, tenant)), 0)
    };
    if excess < MIN_RECLAIM.max(keep / 256) {
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

/// How many file pages of a tenant can be reclaimed before it or an ancestor is below its minimum, bytes; 0 for a tenant
/// that is exempt from reclaim, as one with an excluded cgroup below it is, or not in the snapshot.
#[must_use]
pub fn reclaimable_above_minimums(snapshot: &Snapshot, key: Key) -> u64 {
    let mut tenants = snapshot.tenants.iter();
    tenants
        .find(|(_, tenant)| tenant.key == key)
        .filter(|(_, tenant)| tenant.exempt.is_none())
        .map_or(0, |(id, tenant)| above_minimums(snapshot, id, tenant))
}

fn above_minimums(snapshot: &Snapshot, id: NodeId, tenant: &Tenant) -> u64 {
    let ancestors = snapshot.tenants.ancestors(id);
    let ancestors = ancestors.map(|id| &snapshot.tenants[id]);
    std::iter::once(tenant)
        .chain(ancestors)
        .map(|tenant| tenant.file.saturating_sub(tenant.minimum))
        .min()
        .unwrap_or(0)
}
