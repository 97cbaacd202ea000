//! How a tenant's entitlement follows from its siblings'.

use justitia_api::{Status, TenantStatus};
use justitia_share::num::to_f64;

use justitia_api::units::bytes;

/// Siblings that are named, at most.
const NAMED: usize = 3;
/// Two that are this near to the same part by weight have the same.
const NEAR: f64 = 0.01;

/// How its entitlement is recomputed; `None` where there is nothing to divide.
pub(super) fn of(status: &Status, tenant: &TenantStatus) -> Option<String> {
    let group: Vec<(usize, &TenantStatus)> = status
        .tenants
        .iter()
        .enumerate()
        .filter(|(_, t)| t.parent == tenant.parent)
        .collect();
    let all = match tenant.parent {
        Some(parent) => status.tenants.get(parent)?.entitlement,
        None => status.memory.cache_divisible,
    };
    // First what they use, if it fits; of the rest then.
    let used: u64 = group.iter().map(|(_, t)| t.working_set).sum();
    let fits = used <= all;
    let rest = |t: &TenantStatus| {
        let first = if fits { t.working_set } else { 0 };
        t.entitlement.saturating_sub(first)
    };
    let by_weight = |t: &TenantStatus| to_f64(rest(t)) / to_f64(t.weight.max(1));
    let wants = |i: usize, t: &TenantStatus| {
        if fits {
            wants_all(status, i)
        } else {
            t.working_set > t.entitlement
        }
    };
    // By weight, nobody that wants all it can get has less than another that does, unless that has a minimum.
    let level = group
        .iter()
        .filter(|(i, t)| wants(*i, t))
        .map(|(_, t)| by_weight(t))
        .reduce(f64::min);
    let Some(level) = level else {
        return (all > 0 && group.len() > 1).then(|| {
            "none of these children demands more than it holds: each gets that if all fits, and the rest is divided by \
             weight"
                .to_owned()
        });
    };
    if level <= 0.0 {
        return None;
    }
    let at_level = |t: &TenantStatus| (by_weight(t) / level - 1.0).abs() <= NEAR;
    if !at_level(tenant) {
        return Some(if by_weight(tenant) < level {
            "that is all it demands; its weight would give it more".to_owned()
        } else {
            "its minimum, or its dirty pages, are more than its weight would give it".to_owned()
        });
    }
    let (sharing, others): (Vec<&TenantStatus>, Vec<_>) =
        group.iter().map(|(_, t)| *t).partition(|t| at_level(t));
    let weigh: u64 = sharing.iter().map(|t| t.weight).sum();
    let gone: u64 = others.iter().map(|t| rest(t)).sum();
    let left = all.saturating_sub(if fits { used } else { 0 });
    let first = match (used, fits) {
        (0, _) => String::new(),
        (_, true) => format!(
            "the working sets of {} in all fit: it gets its own of {}, and of the rest ",
            bytes(used),
            bytes(tenant.working_set)
        ),
        (_, false) => format!(
            "the working sets of {} in all do not fit: it gets ",
            bytes(used)
        ),
    };
    let demand = if fits {
        "demand"
    } else {
        "have a working set of"
    };
    let mut text = format!(
        "{first}{}/{weigh} of {}; {weigh} is the weight of those that {demand} at least their part by weight",
        tenant.weight,
        bytes(left.saturating_sub(gone))
    );
    if !others.is_empty() {
        let name = |t: &&TenantStatus| {
            let name = t.path.rsplit('/').next().unwrap_or_default();
            let name = if name == "-" { "unmanaged" } else { name };
            format!("{name} {}", bytes(t.entitlement))
        };
        let named: Vec<String> = others.iter().take(NAMED).map(name).collect();
        let more = match others.len().saturating_sub(NAMED) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        text += &format!("; the others get {}{more}", named.join(", "));
    }
    Some(text)
}

/// Whether a tenant, or one below it, wants all it can get.
fn wants_all(status: &Status, index: usize) -> bool {
    let below = |mut at: usize| {
        loop {
            if at == index {
                return true;
            }
            // Parents stand before their children.
            match status.tenants.get(at).and_then(|t| t.parent) {
                Some(parent) if parent < at => at = parent,
                _ => return false,
            }
        }
    };
    let mut leaves = status.tenants.iter().enumerate();
    leaves.any(|(i, t)| t.leaf && t.growing && below(i))
}
