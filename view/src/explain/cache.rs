//! What a tenant holds of the page cache, what it is entitled to, and what would be reclaimed from it.

use std::fmt::Write;

use justitia_api::units::{bytes, seconds};
use justitia_api::{DemandModel, EstimateBasis, Status, TenantStatus};

use super::part;

pub(super) fn entitlement(out: &mut String, status: &Status, tenant: &TenantStatus) {
    let of = match tenant.parent.and_then(|p| status.tenants.get(p)) {
        Some(parent) => format!("the {} of {}", bytes(parent.entitlement), parent.path),
        None => format!(
            "{} (all file pages, and the free memory above the headroom)",
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
        "  rule: a cgroup's entitlement is divided by weight among its children that demand page cache; what one does \
         not demand goes to its siblings"
    );
    if let Some(part) = part::of(status, tenant) {
        let _ = writeln!(out, "  now: {part}");
    }
    let demand = demand(status, tenant);
    let _ = writeln!(out, "  {demand}");
    if over > 0 && tenant.leaf {
        let _ = writeln!(
            out,
            "  {} above its entitlement: this excess is reclaimed when memory is short, before anybody's entitlement",
            bytes(over)
        );
    }
    if tenant.minimum > 0 {
        let _ = writeln!(
            out,
            "  the agent reclaims nothing below its minimum of {}",
            bytes(tenant.minimum)
        );
    }
}

/// What a tenant demands: its working set, then the rest.
fn demand(status: &Status, tenant: &TenantStatus) -> String {
    if !tenant.leaf {
        return "demand: that of its children".to_owned();
    }
    let unsure = tenant.observed_for < status.policy.min_observation;
    let rest = match (tenant.growing, status.demand_model, unsure) {
        (true, ..) => "its cache grows, so it demands all that it can get",
        (false, DemandModel::Use, false) => {
            "its cache does not grow, so it demands no more than that"
        }
        (false, ..) => "its cache does not grow, so it demands no more than it holds",
    };
    if status.demand_model == DemandModel::Usage {
        return rest.to_owned();
    }
    if tenant.path == "-" {
        return format!(
            "accesses of what runs in no managed cgroup are not seen. While its cache grows, and for two minutes after, its \
             share by weight is divided first: {}\n  the rest, divided second: {rest}",
            bytes(tenant.working_set)
        );
    }
    if tenant.working_set_unknown {
        return format!(
            "working set: not known; its accesses are not sampled, and the kernel's lists do not tell. What its processes \
             have mapped is divided first: {}\n  the rest, divided second: {rest}",
            bytes(tenant.working_set)
        );
    }
    let by = match tenant.evidence {
        EstimateBasis::Accesses => format!(
            "from its sampled accesses of the last {}",
            seconds(tenant.observed_for.min(600.0))
        ),
        // They have no window: what they show is as of now.
        EstimateBasis::Lists if tenant.idle < 1.0 => "from the kernel's LRU lists".to_owned(),
        EstimateBasis::Lists => format!(
            "from the kernel's LRU lists; idle for {}",
            seconds(tenant.idle)
        ),
    };
    format!(
        "working set, divided first: {} ({by})\n  the rest, divided second: {rest}",
        bytes(tenant.working_set),
    )
}

/// What is reclaimed from it, and when.
pub(super) fn taking(out: &mut String, status: &Status, tenant: &TenantStatus) {
    let memory = &status.memory;
    let _ = writeln!(
        out,
        "\nReclaim: {} by the agent so far",
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
        "  rule: when free memory (now {}) falls below the headroom (now {}), the agent reclaims clean file pages from \
         tenants above their entitlement, in proportion to their excess",
        bytes(memory.free),
        bytes(memory.free_headroom)
    );
    let now = if !tenant.leaf {
        "it is an inner node: of its orphaned pages, which no child is charged for, all are excess; its children have \
         excesses of their own"
            .to_owned()
    } else if let Some(why) = &tenant.exempt {
        format!("nothing is reclaimed from it now: {why}")
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
                "no more than its dirty pages and those under writeback ({})",
                bytes(tenant.unreclaimable)
            )
        };
        format!("nothing is reclaimed from it: it holds {why}")
    } else if short {
        format!("up to {} can be reclaimed from it now", bytes(over))
    } else {
        format!(
            "nothing is reclaimed now; up to {} when memory is short",
            bytes(over)
        )
    };
    let _ = writeln!(out, "  {now}");
}
