//! The page cache divided by weight.

use justitia_share::{Demand, Tree, entitlements};

use super::demand::{demand, orphaned};
use super::policy::Policy;
use crate::model::{Key, Snapshot, Tenant};

/// What each tenant is entitled to, in bytes of cache: file pages and reclaimable slab. The vectors are indexed like [`Snapshot::tenants`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Entitlements {
    /// What is divided: all file pages and reclaimable slab, and the free memory above the headroom.
    pub capacity: u64,
    /// The free memory to keep ([`Policy::free_headroom`]).
    pub free_headroom: u64,
    /// What every tenant demands.
    pub demands: Vec<Demand>,
    /// Every tenant's entitlement.
    pub entitled: Vec<u64>,
    /// Of inner nodes: what their own orphaned pages keep of that.
    pub orphaned: Vec<u64>,
    /// Of leaves: the part of it that is protected from the kernel's reclaim, which is what the tenant demands; its slab is
    /// not. What an inner node protects is the sum of its leaves'.
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
        let share = unmanaged_share(snapshot, capacity);
        let demands = tenants.map(|id, tenant| demand(tenant, tenants.is_leaf(id), share, policy));
        let (entitled, orphaned) = divide(tenants, &demands, capacity);
        let protected = demands
            .values()
            .zip(tenants.values())
            .zip(&entitled)
            .map(|((demand, tenant), entitled)| {
                demand.total.min(entitled.saturating_sub(tenant.slab))
            })
            .collect();
        Self {
            capacity,
            free_headroom,
            demands: demands.values().copied().collect(),
            entitled,
            orphaned,
            protected,
        }
    }
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

/// The part of the cache that is the unmanaged tenant's by weight, among those at the top level that hold or want any.
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
