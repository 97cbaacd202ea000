//! From a snapshot to entitlements: the page cache divided by weight.

use std::time::Duration;

use justitia_share::{Claim, NodeId, Tree, entitlements, num};

use super::snapshot::{Memory, Snapshot, Tenant};

/// The constants of the planners. The defaults suit every machine we know; a configuration may change
/// those that are matters of taste.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Policy {
    /// How long a tenant may leave its cache unused before its protection fades. Default 60 s.
    pub idle_grace: Duration,
    /// After that, the time in which the protection of what it holds halves. Default 60 s.
    pub idle_half_life: Duration,
    /// How far ahead the free memory is kept: reclaim begins when it would fall below the kernel's own
    /// watermark within this time. Default 200 ms, two ticks.
    pub horizon: Duration,
    /// PSI `full avg10` in percent from which a tenant is left alone. Default 60.
    pub thrash_full: f64,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            idle_grace: Duration::from_secs(60),
            idle_half_life: Duration::from_secs(60),
            horizon: Duration::from_millis(200),
            thrash_full: 60.0,
        }
    }
}

impl Policy {
    /// The part of what an idle tenant holds that stays protected, 1 to 0: an idle tax, as VMware ESX has
    /// for memory (Waldspurger, OSDI '02, section 5), but rising with the time of idleness.
    #[must_use]
    pub fn kept_when_idle(&self, idle_for: Duration) -> f64 {
        let over = idle_for.saturating_sub(self.idle_grace).as_secs_f64();
        let half_life = self.idle_half_life.as_secs_f64().max(0.001);
        (-over / half_life).exp2()
    }

    /// The free memory, in bytes, below which tenants above their entitlement give back: the kernel's low
    /// watermark, and what will be used up within the horizon, at most 6 % of the memory and at least 0.4 %.
    /// All of it comes out of overage, so it costs nobody what they are entitled to.
    #[must_use]
    pub fn reserve(&self, memory: &Memory) -> u64 {
        let ahead = num::to_f64(memory.falling) * self.horizon.as_secs_f64();
        let ahead = num::to_u64(ahead).clamp(memory.total / 256, memory.total / 16);
        memory.low_watermark.saturating_add(ahead)
    }
}

/// What each tenant is entitled to, in bytes of file pages, indexed like [`Snapshot::tenants`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Shares {
    /// What there is to divide: all file pages, and the free memory above the reserve.
    pub capacity: u64,
    /// The free memory that is kept for the next moment.
    pub reserve: u64,
    /// Entitlement of every tenant.
    pub entitled: Vec<u64>,
    /// The part of the entitlement that is protected from the kernel's reclaim: what the tenant demands
    /// of it, which fades while it is idle.
    pub protected: Vec<u64>,
}

impl Shares {
    /// Justitia's threshold (section III-B3, equation 1), hierarchical and work-conserving: tenants that
    /// grow demand all they can get, the others what they hold, idle ones ever less of it.
    #[must_use]
    pub fn of(snapshot: &Snapshot, policy: &Policy) -> Self {
        let reserve = policy.reserve(&snapshot.memory);
        let held: u64 = snapshot.tenants.iter().map(|t| t.own).sum();
        let capacity = held
            .saturating_add(snapshot.memory.free)
            .saturating_sub(reserve);

        let mut tree = Tree::new();
        let mut ids: Vec<NodeId> = Vec::with_capacity(snapshot.tenants.len());
        for tenant in &snapshot.tenants {
            let parent = tenant.parent.map_or(NodeId::ROOT, |p| ids[p]);
            let id = tree.add(parent, claim(tenant, policy));
            tree.set_wish(id, tenant.wish.min(tenant.file));
            ids.push(id);
        }
        let parts = entitlements(&tree, capacity);
        let entitled: Vec<u64> = ids.iter().map(|id| parts[id.index()]).collect();
        let protected = ids
            .iter()
            .zip(&entitled)
            .map(|(id, part)| tree.claim(*id).demand.min(*part))
            .collect();
        Self {
            capacity,
            reserve,
            entitled,
            protected,
        }
    }
}

/// What a tenant asks for. What nobody living stands for asks for nothing: what an inner node has of its own, however
/// much, neither adds to what its subtree gets nor takes from its siblings.
fn claim(tenant: &Tenant, policy: &Policy) -> Claim {
    let floor = tenant.floor.min(tenant.file).max(tenant.stuck);
    let demand = if !tenant.leaf || (tenant.wants_more && tenant.populated) {
        u64::MAX
    } else if tenant.populated {
        let used = tenant.own.saturating_sub(tenant.residue);
        num::to_u64(num::to_f64(used) * policy.kept_when_idle(tenant.idle_for))
    } else {
        0
    };
    Claim {
        weight: tenant.weight,
        floor,
        useful: 0,
        demand: demand.max(floor),
    }
}
