//! Why each knob of a tenant has its value.
//!
//! Pure: the agent's status and the current values of the kernel's files go in, text comes out.

mod applications;
mod cache;
mod current;
mod decisions;
mod find;
mod knobs;
mod part;
mod rules;
mod undo;
mod unmanaged;

use std::fmt::Write;

use justitia_api::{KnobOwner, Status, TenantStatus, WeightSource};
use justitia_share::num::to_f64;

use applications::applications;
use cache::{entitlement, taking};
pub use current::{CurrentValues, LeftKnob};
use decisions::decisions;
pub use find::{find, nearest};
use justitia_api::units::percent;
use knobs::{held, others};
pub use unmanaged::{Unmanaged, bounds, unmanaged};

/// Everything about one tenant.
#[must_use]
pub fn explain(status: &Status, index: usize, current: &CurrentValues) -> String {
    let Some(tenant) = status.tenants.get(index) else {
        return String::new();
    };
    let mut out = String::new();
    head(&mut out, status, tenant);
    entitlement(&mut out, status, tenant);
    applications(&mut out, status, tenant);
    let _ = writeln!(out, "\nKnobs");
    for knob in &tenant.knobs {
        held(&mut out, &status.policy, tenant, knob, current);
    }
    let told = out.len();
    others(&mut out, tenant, current);
    above(&mut out, status, tenant);
    if tenant.knobs.is_empty() && out.len() == told {
        let _ = writeln!(out, "  none set by the agent");
    }
    taking(&mut out, status, tenant);
    decisions(&mut out, status, tenant, current);
    out
}

/// The agent's limits on its ancestors: the tenant may be waiting for those.
fn above(out: &mut String, status: &Status, tenant: &TenantStatus) {
    let mut next = tenant.parent;
    while let Some(up) = next.and_then(|index| status.tenants.get(index)) {
        let ours = up.knobs.iter().filter(|k| k.owner == KnobOwner::Agent);
        let mut limits = ours
            .map(|k| k.knob.split(' ').next().unwrap_or(&k.knob))
            .filter(|knob| matches!(*knob, "io.max" | "memory.high"));
        if let Some(knob) = limits.next() {
            let _ = writeln!(
                out,
                "  {knob} of its ancestor {} limits it too: that subtree is delegated, and disks are divided among \
                 delegated subtrees, not inside them (see `justitia explain {}`)",
                up.path, up.path
            );
        }
        next = up.parent.filter(|parent| Some(*parent) < next);
    }
}

fn head(out: &mut String, status: &Status, tenant: &TenantStatus) {
    let from = match tenant.weight_source {
        WeightSource::Default => "the default: io.weight and io.bfq.weight are 100",
        WeightSource::Cgroup => "from its cgroup's io.weight or io.bfq.weight",
        WeightSource::OnlyChild => "from its only child, which has no sibling",
        WeightSource::Configuration => "from the agent's configuration",
    };
    let siblings: u64 = status
        .tenants
        .iter()
        .filter(|t| t.parent == tenant.parent)
        .map(|t| competing_weight(status, t))
        .sum();
    let competes = competing_weight(status, tenant);
    let name = tenant.display_name();
    let what = if tenant.is_unmanaged() {
        ": processes in no managed cgroup"
    } else {
        ""
    };
    let mode = if status.observe {
        "; the agent only observes and changes nothing"
    } else {
        ""
    };
    let _ = writeln!(out, "{name}{what}{mode}");
    let _ = writeln!(
        out,
        "  weight {} ({from}), {} % of {siblings}, the sum of its and its siblings' weights, idle ones included",
        tenant.weight,
        percent(to_f64(competes) / to_f64(siblings.max(1))),
    );
    if tenant.sums_weights {
        let _ = writeln!(
            out,
            "  for page cache it weighs {competes}, what its children that demand any weigh together: nobody has set its weight"
        );
    }
}

/// The weight with which a tenant competes for page cache ([`TenantStatus::sums_weights`]).
fn competing_weight(status: &Status, tenant: &TenantStatus) -> u64 {
    let position = |t: &TenantStatus| status.tenants.iter().position(|one| one.id == t.id);
    let Some(index) = position(tenant).filter(|_| tenant.sums_weights) else {
        return tenant.weight;
    };
    let children = status.tenants.iter().filter(|t| t.parent == Some(index));
    let demand = children.filter(|t| !t.leaf || t.demand != Some(0));
    let sum: u64 = demand.map(|t| competing_weight(status, t)).sum();
    if sum > 0 { sum } else { tenant.weight }
}

#[cfg(test)]
mod tests;
