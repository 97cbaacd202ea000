//! From a snapshot to entitlements: the page cache divided by weight.

use std::time::Duration;

use justitia_api::DemandModel;
use justitia_share::{self as share, Tree, entitlements, num};

use crate::model::{MIN_OBSERVATION, Memory, Snapshot, Tenant};

/// The constants of the planners. The defaults suit every machine we know; a configuration may change
/// those that are matters of taste.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Policy {
    /// What of its cache a tenant demands. Default: what it uses.
    pub demand: DemandModel,
    /// How far ahead the free memory is kept: reclaim begins when it would fall below the kernel's own
    /// watermark within this time. Default 200 ms, two ticks.
    pub horizon: Duration,
    /// PSI `full avg10` in percent from which a tenant is left alone. Default 60.
    pub thrash_full: f64,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            demand: DemandModel::Use,
            horizon: Duration::from_millis(200),
            thrash_full: 60.0,
        }
    }
}

impl Policy {
    /// The free memory, in bytes, below which tenants above their entitlement give back: the kernel's low
    /// watermark, and what will be used up within the horizon, at most 6 % of the memory and at least 0.4 %.
    /// All of it comes out of overage, so it costs nobody what they are entitled to.
    #[must_use]
    pub fn free_headroom(&self, memory: &Memory) -> u64 {
        let ahead = num::to_f64(memory.consumption_rate) * self.horizon.as_secs_f64();
        let ahead = num::to_u64(ahead).clamp(memory.total / 256, memory.total / 16);
        memory.low_watermark.saturating_add(ahead)
    }
}

/// What each tenant is entitled to, in bytes of file pages, indexed like [`Snapshot::tenants`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Entitlements {
    /// What there is to divide: all file pages, and the free memory above the reserve.
    pub capacity: u64,
    /// The free memory that is kept for the next moment.
    pub free_headroom: u64,
    /// What every tenant demands.
    pub demands: Vec<share::Demand>,
    /// Entitlement of every tenant.
    pub entitled: Vec<u64>,
    /// The part of the entitlement that is protected from the kernel's reclaim: what the tenant demands of it.
    pub protected: Vec<u64>,
}

impl Entitlements {
    /// Justitia's threshold (section III-B3, equation 1), hierarchical and work-conserving, in two rounds: by weight
    /// what tenants use again and again, and by weight what is left, among those that take in more.
    #[must_use]
    pub fn of(snapshot: &Snapshot, policy: &Policy) -> Self {
        let free_headroom = policy.free_headroom(&snapshot.memory);
        let held: u64 = snapshot.tenants.iter().map(|t| t.own).sum();
        let capacity = held
            .saturating_add(snapshot.memory.free)
            .saturating_sub(free_headroom);

        let mut tree = Tree::with_capacity(snapshot.tenants.len());
        for tenant in &snapshot.tenants {
            let parent = tenant.parent.and_then(|parent| tree.node(parent));
            tree.push(parent, demand(tenant, policy));
        }
        let entitled = entitlements(&tree, capacity);
        let protected = tree
            .values()
            .zip(&entitled)
            .map(|(demand, part)| demand.total.min(*part))
            .collect();
        Self {
            capacity,
            free_headroom,
            demands: tree.values().copied().collect(),
            entitled,
            protected,
        }
    }
}

/// What a tenant demands. What nobody living stands for asks for nothing: what an inner node has of its own, however
/// much, neither adds to what its subtree gets nor takes from its siblings.
fn demand(tenant: &Tenant, policy: &Policy) -> share::Demand {
    let floor = tenant.floor.min(tenant.file).max(tenant.unreclaimable);
    let used = tenant.own.saturating_sub(tenant.orphaned);
    let seen = tenant.working_set;
    let holds = if policy.demand == DemandModel::Usage || seen.observed_for < MIN_OBSERVATION {
        used
    } else {
        0
    };
    let useful = match policy.demand {
        DemandModel::Use => seen.useful.max(tenant.mapped.min(used)),
        DemandModel::Usage => 0,
    };
    let (useful, total) = match (tenant.leaf, tenant.populated) {
        (false, _) => (0, u64::MAX),
        (true, false) => (0, 0),
        (true, true) if tenant.growing => (useful, u64::MAX),
        (true, true) => (useful, useful.max(holds)),
    };
    share::Demand {
        weight: tenant.weight,
        floor,
        requested: tenant.requested.min(tenant.file),
        useful,
        total: total.max(floor),
    }
}
