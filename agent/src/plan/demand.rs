//! What a tenant demands of the page cache.

use justitia_api::{DemandModel, RESTS_AFTER};
use justitia_share::{Demand, Weight};

use super::policy::Policy;
use crate::model::{Key, MIN_OBSERVATION, Tenant};

/// What a tenant demands; `leaf`: whether no tenant is below it; `share`: the part of the cache that is the unmanaged
/// tenant's by weight, bytes. Orphaned pages demand nothing, but those in use ([`orphaned`]).
///
/// - Nothing demands more than its limits leave to it.
/// - A working set is what the curve shows and what is mapped. Of what it does not hold no more counts
///   than it has paged in lately: one that misses nothing needs no more than it has.
/// - What was there before the tenant's accesses were observed counts as used until they have been observed long enough.
/// - Where accesses cannot be seen, growth is the only sign of use: the unmanaged tenant is entitled to its share while it
///   grows, and to what it holds for two minutes after.
/// - Slab is no working set: it is divided as data that is read once.
pub(super) fn demand(tenant: &Tenant, leaf: bool, share: u64, policy: &Policy) -> Demand {
    let minimum = tenant.minimum.min(tenant.cache).max(tenant.unreclaimable);
    let held = tenant.own.saturating_sub(tenant.orphaned);
    let unsure = tenant.working_set.observed_for < MIN_OBSERVATION;
    let keeps = if policy.demand == DemandModel::Usage || unsure {
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
    let rests = tenant.idle_for.as_secs_f64() >= RESTS_AFTER;
    Demand {
        weight: tenant.weight,
        sums_weights: !leaf && tenant.sums_weights,
        minimum,
        in_use: if rests { 0 } else { working_set },
        requested_protection: tenant.requested_protection.min(tenant.cache),
        working_set,
        total: total.min(tenant.limit).max(minimum),
    }
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

/// The working set of a tenant that holds so many file pages, bytes.
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
    used.max(tenant.unseen.min(file))
}
