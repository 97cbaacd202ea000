//! The page cache divided by weight.

use justitia_api::{DemandModel, RESTS_AFTER};
use justitia_share::{Demand, entitlements};

use super::policy::Policy;
use crate::model::{MIN_OBSERVATION, Snapshot, Tenant};

/// What each tenant is entitled to, in bytes of file pages. The vectors are indexed like [`Snapshot::tenants`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Entitlements {
    /// What is divided: all file pages, and the free memory above the headroom.
    pub capacity: u64,
    /// The free memory to keep ([`Policy::free_headroom`]).
    pub free_headroom: u64,
    /// What every tenant demands.
    pub demands: Vec<Demand>,
    /// Every tenant's entitlement.
    pub entitled: Vec<u64>,
    /// Of leaves: the part of it that is protected from the kernel's reclaim, which is what the tenant demands. What an
    /// inner node protects is the sum of its leaves'.
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
        let capacity = held
            .saturating_add(snapshot.memory.free)
            .saturating_sub(free_headroom);
        let demands = tenants.map(|id, tenant| demand(tenant, tenants.is_leaf(id), policy));
        let entitled = entitlements(&demands, capacity);
        let protected = demands
            .values()
            .zip(&entitled)
            .map(|(demand, entitled)| demand.total.min(*entitled))
            .collect();
        Self {
            capacity,
            free_headroom,
            demands: demands.values().copied().collect(),
            entitled,
            protected,
        }
    }
}

/// What a tenant demands. Orphaned pages demand nothing: they neither add to what their subtree gets nor take from its
/// siblings.
fn demand(tenant: &Tenant, leaf: bool, policy: &Policy) -> Demand {
    let minimum = tenant.minimum.min(tenant.file).max(tenant.unreclaimable);
    let held = tenant.own.saturating_sub(tenant.orphaned);
    let observed = tenant.working_set;
    let unsure = observed.observed_for < MIN_OBSERVATION;
    let keeps = if policy.demand == DemandModel::Usage || unsure {
        held
    } else {
        0
    };
    let working_set = match policy.demand {
        DemandModel::Use => observed.bytes.max(tenant.mapped.min(held)),
        DemandModel::Usage => 0,
    };
    let (working_set, total) = match (leaf, tenant.populated) {
        (false, _) => (0, u64::MAX),
        (true, false) => (0, 0),
        (true, true) if tenant.growing => (working_set, u64::MAX),
        (true, true) => (working_set, working_set.max(keeps)),
    };
    let rests = tenant.idle_for.as_secs_f64() >= RESTS_AFTER;
    Demand {
        weight: tenant.weight,
        minimum,
        in_use: if rests { 0 } else { working_set },
        requested_protection: tenant.requested_protection.min(tenant.file),
        working_set,
        total: total.max(minimum),
    }
}
