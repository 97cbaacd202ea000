//! Who gives back file pages now, and how many.

use justitia_api::ExcessReason;
use justitia_share::{give_back, overage};

use super::entitlements::Entitlements;
use crate::model::{Key, Snapshot};

/// Reclaim this much from one tenant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReclaimIntent {
    /// From whom.
    pub key: Key,
    /// How many bytes of clean file pages.
    pub bytes: u64,
    /// The facts behind it.
    pub reason: ExcessReason,
}

/// The least that is worth a system call, bytes; also the step below which being above the
/// entitlement is noise.
pub const LEAST: u64 = 128 << 10;
/// The most that one intent asks for, bytes: `memory.reclaim` is synchronous, and holds up the
/// cgroup's removal.
pub const MOST: u64 = 32 << 20;

/// Justitia's reclamation (section III-B3) ahead of the kernel's: when free memory is short, those above
/// their entitlement give back, in proportion to their overage, until there is enough. While there is room
/// for all, and from those within their entitlement, nothing is taken. What an inner node has of its own is overage,
/// down to the floors of the node and of those above it.
#[must_use]
pub fn plan_reclaim(snapshot: &Snapshot, entitlements: &Entitlements) -> Vec<ReclaimIntent> {
    let free = snapshot.memory.free;
    let need = entitlements
        .free_headroom
        .saturating_sub(free)
        .saturating_sub(snapshot.memory.reclaim_in_flight);
    if need == 0 {
        return Vec::new();
    }
    let unreclaimable = own_stuck(snapshot);
    let spare = |i: usize| -> u64 {
        let tenant = &snapshot.tenants[i];
        if tenant.exempt.is_some() {
            return 0;
        }
        let held = tenant.own.saturating_sub(tenant.untargetable);
        let (over, keep) = if tenant.leaf {
            let keep = entitlements.entitled[i]
                .max(tenant.floor)
                .max(tenant.unreclaimable);
            (overage(held, keep), keep)
        } else {
            let above_floors = above_floors(snapshot, i);
            (overage(held, unreclaimable[i]).min(above_floors), 0)
        };
        if over < LEAST.max(keep / 256) {
            0
        } else {
            over
        }
    };
    let over: Vec<u64> = (0..snapshot.tenants.len()).map(spare).collect();
    give_back(need, &over)
        .into_iter()
        .enumerate()
        .filter(|(i, bytes)| over[*i] > 0 && (*bytes >= LEAST || *bytes == over[*i]))
        .map(|(i, bytes)| ReclaimIntent {
            key: snapshot.tenants[i].key,
            bytes: bytes.min(MOST),
            reason: ExcessReason {
                usage: snapshot.tenants[i].own,
                entitlement: entitlements.entitled[i],
                orphaned: !snapshot.tenants[i].leaf,
                free,
                free_headroom: entitlements.free_headroom,
            },
        })
        .collect()
}

/// What cannot be reclaimed of what each tenant has of its own.
fn own_stuck(snapshot: &Snapshot) -> Vec<u64> {
    let mut unreclaimable: Vec<u64> = snapshot.tenants.iter().map(|t| t.unreclaimable).collect();
    for tenant in &snapshot.tenants {
        if let Some(parent) = tenant.parent {
            unreclaimable[parent] = unreclaimable[parent].saturating_sub(tenant.unreclaimable);
        }
    }
    unreclaimable
}

/// How much can go before the tenant, or one above it, has less than its floor.
fn above_floors(snapshot: &Snapshot, tenant: usize) -> u64 {
    let mut least = u64::MAX;
    let mut at = Some(tenant);
    while let Some(tenant) = at.map(|i| &snapshot.tenants[i]) {
        least = least.min(tenant.file.saturating_sub(tenant.floor));
        at = tenant.parent;
    }
    least
}
