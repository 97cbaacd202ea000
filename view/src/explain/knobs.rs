//! The value of each knob, which process wrote it, why, and what changes it.

use std::fmt::Write;

use justitia_api::{KnobOwner, KnobStatus, PolicyStatus, ProtectionReason, TenantStatus};

use super::current::CurrentValues;
use super::rules;
use justitia_api::units::bytes;

pub(super) fn held(
    out: &mut String,
    policy: &PolicyStatus,
    tenant: &TenantStatus,
    knob: &KnobStatus,
    current: &CurrentValues,
) {
    let name = current.name(&knob.knob);
    let now = current
        .knobs
        .iter()
        .find(|(file, _)| *file == knob.knob)
        .map_or(knob.value.as_str(), |(_, value)| value);
    let _ = match knob.owner {
        KnobOwner::Proposed => writeln!(
            out,
            "  {name} = {}; the agent would set {}",
            amount(now),
            amount(&knob.value)
        ),
        _ => writeln!(out, "  {name} = {}", amount(now)),
    };
    if knob.owner == KnobOwner::External {
        let _ = writeln!(
            out,
            "    external: another process has set it, or the kernel refused the agent's write; the agent leaves it as it is"
        );
        if knob.knob == "memory.low" {
            let _ = writeln!(
                out,
                "    the agent takes it, less the memory that is not file pages ({}), as the tenant's minimum: it reclaims no \
                 file pages below that",
                bytes(tenant.other)
            );
        }
        let _ = writeln!(
            out,
            "    changes when: another process writes it. To give it back to the agent: write the default{}, then restart the \
             agent",
            default_of(&knob.knob)
        );
        return;
    }
    if knob.owner == KnobOwner::Agent {
        let before = knob.original.as_deref().unwrap_or("?");
        let _ = writeln!(
            out,
            "    written by the agent; restored when the agent ends: {}",
            amount(before)
        );
    }
    if let Some(reason) = &knob.reason {
        let _ = writeln!(out, "    reason, when it was set: {reason}");
    }
    if let Some(now) = low_now(policy, tenant, knob) {
        let _ = writeln!(out, "    now: {now}");
    }
    let (rule, change) = rule(policy, &knob.knob, tenant);
    if !rule.is_empty() {
        let _ = writeln!(out, "    rule: {rule}");
        let _ = writeln!(
            out,
            "    changes when: {change}; if another process writes it, it is external"
        );
    }
}

/// The value that the kernel gives a knob, in words; nothing for a knob whose default a reader cannot write as it is.
fn default_of(knob: &str) -> &'static str {
    match knob {
        "memory.low" => " (0)",
        "memory.high" => " (max)",
        _ => "",
    }
}

/// How far a leaf's `memory.low` is from its wanted value by now.
fn low_now(policy: &PolicyStatus, tenant: &TenantStatus, knob: &KnobStatus) -> Option<String> {
    if knob.knob != "memory.low" || !tenant.leaf {
        return None;
    }
    let value: u64 = knob.value.parse().ok()?;
    let goal = ProtectionReason::of_leaf(tenant.protected, tenant.other).memory_low();
    let off = goal.abs_diff(value);
    let deadband = policy.low_deadband(goal);
    Some(if off == 0 {
        "it has the wanted value".to_owned()
    } else if off <= deadband && goal > 0 {
        format!(
            "the wanted value is {}; the difference of {} is within the deadband of {}, so it is not written",
            bytes(goal),
            bytes(off),
            bytes(deadband)
        )
    } else {
        format!(
            "the wanted value is {}; it is written with the next plan",
            bytes(goal)
        )
    })
}

/// The rule that a knob of the agent's follows, and what changes it.
fn rule(policy: &PolicyStatus, knob: &str, tenant: &TenantStatus) -> (String, &'static str) {
    let io = policy.io.as_ref();
    match knob.split(' ').next() {
        Some("memory.low") => (
            low(policy, tenant),
            "its weight or a sibling's changes, it uses more or less cache, or free memory changes",
        ),
        Some("io.max") => (
            rules::io_max(io),
            "the contention ends (then at once), its weight or another's changes, or the others use more or less",
        ),
        Some("memory.high") => (
            rules::memory_high(io, tenant.other),
            "fewer than two such writers are left (then at once), its weight or another's changes, or free memory \
             changes",
        ),
        Some("vm.dirty_background_ratio") => (
            rules::DIRTY_BACKGROUND.to_owned(),
            "the contention ends (then it is restored at once)",
        ),
        _ => (String::new(), ""),
    }
}

fn low(policy: &PolicyStatus, tenant: &TenantStatus) -> String {
    let written = format!(
        "written when off by more than 1/{} and more than {}",
        policy.low_deadband,
        bytes(policy.low_min_deadband)
    );
    if !tenant.leaf {
        return format!(
            "the sum of what its children have there, because the kernel caps theirs by it (now {} of file pages, and \
             the memory that is not file pages of those that have any); {written}",
            bytes(tenant.protected)
        );
    }
    format!(
        "the part of the entitlement that it demands (now {}) is protected from the kernel's own reclaim; its memory \
         that is not file pages (now {}) is added, because memory.low counts that too; {written}",
        bytes(tenant.protected),
        bytes(tenant.other),
    )
}

/// Knobs that the agent does not write, but which bound the tenant.
pub(super) fn others(out: &mut String, tenant: &TenantStatus, current: &[(String, String)]) {
    for (file, value) in current {
        let ours = tenant.knobs.iter().any(|k| k.knob == *file);
        let unset = matches!(value.as_str(), "" | "max" | "0");
        if ours || (unset && file != "memory.low") {
            continue;
        }
        let _ = writeln!(out, "  {file} = {}", amount(value));
        let whose = match (file.as_str(), unset) {
            ("memory.low", true) => {
                "not set, by the agent neither: nothing of its entitlement needs protection"
            }
            ("io.weight" | "io.bfq.weight", _) => {
                "set by its operator; the agent reads it as the weight"
            }
            _ => "set by its operator; the agent never writes it",
        };
        let _ = writeln!(out, "    {whose}");
    }
}

/// `io.max` that limits nothing.
const UNLIMITED: &str = "rbps=max wbps=max riops=max wiops=max";

/// A knob's value, with sizes that can be read; of `io.max` without the device, which the knob's name has.
pub(super) fn amount(value: &str) -> String {
    let value = match value.split_once(' ') {
        Some((device, limits)) if device.contains(':') => limits,
        _ => value,
    };
    if value == UNLIMITED {
        return "no limit".to_owned();
    }
    let readable = |text: &str| text.parse::<u64>().ok().filter(|n| *n >= 10_240).map(bytes);
    if let Some(size) = readable(value) {
        return format!("{value} ({size})");
    }
    let rates: Vec<String> = value
        .split(' ')
        .filter_map(|word| {
            let (name, number) = word.split_once("bps=")?;
            let what = if name == "r" { "reads" } else { "writes" };
            Some(format!("{what} at most {}/s", readable(number)?))
        })
        .collect();
    if rates.is_empty() {
        value.to_owned()
    } else {
        format!("{value} ({})", rates.join(", "))
    }
}
