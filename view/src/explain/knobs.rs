//! What stands in each knob, who has put it there, why, and what would change it.

use std::fmt::Write;

use justitia_api::{KnobOwner, KnobStatus, PolicyStatus, TenantStatus};
use justitia_share::PAGE_SIZE;

use super::current::CurrentValues;
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
            "  {name} stands at {}; the agent would set {}",
            amount(now),
            amount(&knob.value)
        ),
        _ => writeln!(out, "  {name} = {}", amount(now)),
    };
    if knob.owner == KnobOwner::External {
        let _ = writeln!(
            out,
            "    put there by someone else: the agent leaves it to them as long as it runs, and never writes it"
        );
        if knob.knob == "memory.low" {
            let _ = writeln!(
                out,
                "    what it protects is a minimum for the agent too, which takes no file pages below it"
            );
        }
        let _ = writeln!(out, "    would change it: only whoever wrote it");
        return;
    }
    if knob.owner == KnobOwner::Agent {
        let before = knob.original.as_deref().unwrap_or("?");
        let _ = writeln!(
            out,
            "    put there by the agent; before, and again when the agent ends: {}",
            amount(before)
        );
    }
    if let Some(reason) = &knob.reason {
        let _ = writeln!(out, "    because, when it was set: {reason}");
    }
    if let Some(now) = low_now(policy, tenant, knob) {
        let _ = writeln!(out, "    now: {now}");
    }
    let (rule, change) = rule(policy, &knob.knob, tenant);
    if !rule.is_empty() {
        let _ = writeln!(out, "    rule: {rule}");
        let _ = writeln!(
            out,
            "    would change it: {change}, or someone else writing it (then it is theirs)"
        );
    }
}

/// How far a leaf's `memory.low` is from where it should be by now.
fn low_now(policy: &PolicyStatus, tenant: &TenantStatus, knob: &KnobStatus) -> Option<String> {
    if knob.knob != "memory.low" || !tenant.leaf {
        return None;
    }
    let value: u64 = knob.value.parse().ok()?;
    let goal = if tenant.protected > 0 {
        (tenant.protected + tenant.other) / PAGE_SIZE * PAGE_SIZE
    } else {
        0
    };
    let off = goal.abs_diff(value);
    let moved_for = policy.low_deadband(goal);
    Some(if off == 0 {
        "that is what it should be".to_owned()
    } else if off <= moved_for && goal > 0 {
        format!(
            "it should be {}; off by {}, less than the {} that it is moved for, so left",
            bytes(goal),
            bytes(off),
            bytes(moved_for)
        )
    } else {
        format!(
            "it should be {}, and is moved at the next look",
            bytes(goal)
        )
    })
}

/// From what a knob of the agent's follows, and what would change it.
fn rule(policy: &PolicyStatus, knob: &str, tenant: &TenantStatus) -> (String, &'static str) {
    match knob.split(' ').next() {
        Some("memory.low") => (
            format!(
                "what it demands of its entitlement (now {}) is kept from the kernel's own reclaim; on top comes its \
                 memory beside file pages (now {}), which memory.low counts too; moved when off by more than 1/{} of it \
                 and more than {} MiB",
                bytes(tenant.protected),
                bytes(tenant.other),
                policy.low_deadband,
                policy.low_min_deadband >> 20
            ),
            "its weight or a sibling's, more or less use of its cache, free memory",
        ),
        Some("io.max") => (
            "while tenants wait for the same disk, its time, but for 1 % that keeps its queue short (up to 11 % where it \
             is long), is divided by weight among those that use it; what one leaves goes to the others. The correction \
             follows from what applications really got (1: none). What is allowed is told to the kernel in bytes per \
             second, by what the disk lately did in so much time; in requests per second where its requests are so \
             small that they cost more than their bytes; the other is max. Reads and writes share it as it mixed them \
             in the last seconds, each with 5 % of it on top and no less than 15 %, since mixtures change. A limit on \
             writes is higher where what is dirty would take seconds to write; nobody is held below 256K/s or 16 \
             requests/s; and without contention there is no limit"
                .to_owned(),
            "the end of the contention (then it goes at once), its weight or another's, what the others use",
        ),
        Some("memory.high") => (
            format!(
                "how fast the kernel lets a tenant write through the page cache follows from the room that its pages have, \
                 so while several such writers wait for a disk, their file pages and the free memory are divided among \
                 them as the disk's time is that each is allowed (its credits); what one does not fill is open to \
                 the others, unless they hold more than half their part of the dirty pages. On top comes the memory beside file pages (now {}), which memory.high counts too; never less \
                 than 16M of room; at most a quarter of what it uses is reclaimed at once; moved when off by more than an \
                 eighth",
                bytes(tenant.other)
            ),
            "fewer than two such writers (then it goes at once), its weight or another's, free memory",
        ),
        Some("vm.dirty_background_ratio") => (
            "a setting of the whole machine: the kernel writes back from this part of the memory that may be dirty on, \
             in per cent. From when buffered writers contend for a disk until nobody does it is one below vm.dirty_ratio, up to \
             which writers may go; a value that its operator has chosen is left"
                .to_owned(),
            "the end of the contention (then it comes back at once)",
        ),
        _ => (String::new(), ""),
    }
}

/// Knobs that the agent has nothing to do with, but which bound the tenant all the same.
pub(super) fn others(out: &mut String, tenant: &TenantStatus, standing: &[(String, String)]) {
    for (file, value) in standing {
        let ours = tenant.knobs.iter().any(|k| k.knob == *file);
        let unset = matches!(value.as_str(), "" | "max" | "0");
        if ours || (unset && file != "memory.low") {
            continue;
        }
        let _ = writeln!(out, "  {file} = {}", amount(value));
        let whose = match (file.as_str(), unset) {
            ("memory.low", true) => {
                "nobody has set it, nor has the agent: nothing of its entitlement has to be protected"
            }
            ("io.weight" | "io.bfq.weight", _) => {
                "set by its operator; the agent reads it as the weight"
            }
            _ => "set by its operator; the agent neither writes nor changes it",
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
