//! What a tenant holds of the page cache, what it is entitled to, and what would be reclaimed from it.

use std::fmt::Write;

use justitia_api::units::{bytes, seconds};
use justitia_api::{DemandModel, Evidence, Status, TenantStatus};

use super::part;

pub(super) fn entitlement(out: &mut String, status: &Status, tenant: &TenantStatus) {
    let of = match tenant.parent.and_then(|p| status.tenants.get(p)) {
        Some(parent) => format!("the {} of {}", bytes(parent.entitlement), parent.path),
        None => format!(
            "{} (all file pages, and free memory above the reserve)",
            bytes(status.memory.cache_divisible)
        ),
    };
    let over = tenant.usage.saturating_sub(tenant.entitlement);
    let _ = writeln!(
        out,
        "\nPage cache: holds {}, entitled to {} of {of}",
        bytes(tenant.usage),
        bytes(tenant.entitlement)
    );
    let _ = writeln!(
        out,
        "  rule: a cgroup's part is divided by weight among its children that demand page cache; what one leaves goes \
         to its siblings"
    );
    if let Some(part) = part::of(status, tenant) {
        let _ = writeln!(out, "  now: {part}");
    }
    let demand = demand(status, tenant);
    let _ = writeln!(out, "  {demand}");
    if over > 0 && tenant.leaf {
        let _ = writeln!(
            out,
            "  {} above its entitlement: lent, and given back first when memory is short",
            bytes(over)
        );
    }
    if tenant.minimum > 0 {
        let _ = writeln!(
            out,
            "  never below its minimum of {}",
            bytes(tenant.minimum)
        );
    }
}

/// What a tenant demands, in both rounds.
fn demand(status: &Status, tenant: &TenantStatus) -> String {
    if !tenant.leaf {
        return "it demands what its children demand".to_owned();
    }
    let unsure = tenant.observed_for < status.policy.min_observation;
    let rest = match (tenant.growing, status.demand, unsure) {
        (true, ..) => "its cache grows, so it demands all it can get",
        (false, DemandModel::Use, false) => "its cache does not grow, so it demands no more",
        (false, ..) => "its cache does not grow, so it demands no more than it holds",
    };
    // A recording of an older version does not have it.
    let unknown = tenant.working_set == 0 && tenant.observed_for <= 0.0;
    if status.demand == DemandModel::Usage || unknown {
        return rest.to_owned();
    }
    let by = match tenant.evidence {
        Evidence::Accesses => "by its accesses",
        Evidence::Lists => "by the kernel's lists",
    };
    format!(
        "first round, what is used again: {} ({by}, of the last {})\n  second round, what is left: {rest}",
        bytes(tenant.working_set),
        seconds(tenant.observed_for.min(600.0)),
    )
}

/// What would be taken from it, and when.
pub(super) fn taking(out: &mut String, status: &Status, tenant: &TenantStatus) {
    let memory = &status.memory;
    let _ = writeln!(
        out,
        "\nReclaim: {} taken by the agent so far",
        bytes(tenant.reclaimed)
    );
    let keep = tenant
        .entitlement
        .max(tenant.minimum)
        .max(tenant.unreclaimable);
    let over = tenant.usage.saturating_sub(keep);
    let short = memory.free < memory.free_headroom;
    let _ = writeln!(
        out,
        "  rule: when free memory ({} now) falls below the reserve that the agent keeps free ({}), those above their \
         entitlement give back clean file pages, in proportion to what they hold above it",
        bytes(memory.free),
        bytes(memory.free_headroom)
    );
    let now = if !tenant.leaf {
        "it is an inner node: pages are taken from its leaves, and before them what none of them is charged with"
            .to_owned()
    } else if let Some(why) = &tenant.exempt {
        format!("nothing is taken from it now: {why}")
    } else if over == 0 {
        let why = if tenant.usage == 0 {
            "nothing".to_owned()
        } else if tenant.usage <= tenant.entitlement {
            format!(
                "no more than its entitlement ({})",
                bytes(tenant.entitlement)
            )
        } else if tenant.usage <= tenant.minimum {
            format!("no more than its minimum ({})", bytes(tenant.minimum))
        } else {
            format!(
                "no more than what is dirty or being written ({})",
                bytes(tenant.unreclaimable)
            )
        };
        format!("nothing is taken from it: it holds {why}")
    } else if short {
        format!("up to {} can be taken from it now", bytes(over))
    } else {
        format!(
            "nothing is taken now; up to {} could be if memory ran short",
            bytes(over)
        )
    };
    let _ = writeln!(out, "  {now}");
}
