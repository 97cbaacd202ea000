//! From which tenant cold anonymous memory is swapped out now, and how much.
//!
//! Reclaim of file pages ahead of kswapd keeps kswapd asleep, and with it the kernel's own choice between file pages and
//! anonymous memory. This is that choice, made for each tenant: the part of a shortage that anonymous memory gives is the
//! one that the kernel's reclaim would scan (`get_scan_count` in mm/vmscan.c), by the same costs. It is less than that in
//! two cases: while no file page comes back after reclaim, nothing is swapped out; and a tenant whose memory comes back
//! from swap is left alone.

use justitia_api::AnonymousReason;
use justitia_share::num::{to_f64, to_u64};

use super::entitlements::Entitlements;
use super::reclaim::{MIN_RECLAIM, shortage};
use crate::model::{Key, Snapshot, Tenant};

/// Swap out this much of one tenant's anonymous memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AnonymousIntent {
    /// Which tenant.
    pub key: Key,
    /// How many bytes.
    pub bytes: u64,
    /// The facts behind it.
    pub reason: AnonymousReason,
}

/// The most that one intent asks for, bytes. A request ends when the kernel has found so much, in use or not: a mistake
/// costs no more than this before it shows as memory that comes back.
const MAX_SWAP_OUT: u64 = 4 << 20;
/// A tenant's memory is in use if more than one in so many of the bytes that were swapped out lately have come back ...
const IN_USE_FRACTION: u64 = 8;
/// ... beyond this many bytes, which any process reads again now and then. Files are in use beyond as many.
const IN_USE_BYTES: u64 = 1 << 20;

/// The anonymous memory to swap out for the shortage: all of it from the tenant that the kernel would scan most, so that
/// small parts add up to a request. `None` while files have no use for it, or where there is no swap.
#[must_use]
pub fn plan_anonymous(snapshot: &Snapshot, entitlements: &Entitlements) -> Option<AnonymousIntent> {
    let memory = &snapshot.memory;
    let need = shortage(snapshot, entitlements);
    let refaulted = memory.refaulted.saturating_sub(IN_USE_BYTES);
    if need == 0 || refaulted == 0 || memory.swappiness == 0 {
        return None;
    }
    let files = to_f64(refaulted);
    let swappiness = f64::from(memory.swappiness);
    // The kernel's smoothed costs: neither kind is taken for more than twice as cheap as the other.
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

/// Whether what was swapped out of a tenant comes back.
const fn is_in_use(tenant: &Tenant) -> bool {
    tenant.swapped_in > IN_USE_BYTES + tenant.swapped_out / IN_USE_FRACTION
}
