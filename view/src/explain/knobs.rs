//! The value of each knob, which process wrote it, why, and what changes it.

use justitia_api::escape::decode;
use justitia_api::units::bytes;
use justitia_api::{
    IoPolicyStatus, KnobOwner, KnobStatus, PolicyStatus, ProtectionReason, TenantStatus,
};
use std::fmt::Write;

/// What is known of the machine beside the agent's status.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CurrentValues {
    /// What stands in the tenant's cgroup's files now, by the knob's name, where that can be read.
    pub knobs: Vec<(String, String)>,
    /// What disks are called, by their numbers (`8:0`, `sda`).
    pub disks: Vec<(String, String)>,
    /// What an agent that was killed has left in the tenant's knobs, where no agent runs.
    pub left: Vec<LeftKnob>,
    /// The knob journal, or a part of it, could not be read: a value may be a killed agent's that is not in `left`.
    pub left_unknown: bool,
}

/// A knob that still holds a killed agent's value.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeftKnob {
    /// Its file, with the device for a line of `io.weight` or `io.bfq.weight`.
    pub knob: String,
    /// The value before that agent wrote it.
    pub original: String,
}

impl CurrentValues {
    /// A knob's name, with the name of the disk that it is for.
    pub(super) fn name(&self, knob: &str) -> String {
        let disk = knob
            .split_once(' ')
            .and_then(|(_, number)| self.disks.iter().find(|(of, _)| of == number));
        disk.map_or_else(|| knob.to_owned(), |(_, name)| format!("{knob} ({name})"))
    }
    /// Drops from `left` what holds its original value already.
    pub fn drop_restored(&mut self) {
        let knobs = &self.knobs;
        let holds = |left: &LeftKnob| (left.knob.clone(), left.original.clone());
        self.left.retain(|left| !knobs.contains(&holds(left)));
    }

    /// What a knob that a killed agent has left was before.
    fn left(&self, knob: &str) -> Option<&str> {
        let left = self.left.iter().find(|left| left.knob == knob);
        left.map(|left| left.original.as_str())
    }
}

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
    if let Some(original) = current.left(&knob.knob) {
        let _ = writeln!(out, "    {}", left(original));
    }
    match knob.owner {
        KnobOwner::External => return external(out, tenant, knob),
        KnobOwner::GivenUp => return given_up(out, tenant, knob),
        KnobOwner::Agent | KnobOwner::Proposed => {}
    }
    if knob.owner == KnobOwner::Agent {
        let before = knob.original.as_deref().unwrap_or("?");
        let _ = writeln!(
            out,
            "    written by the agent; restored when the agent needs it no more, at its end at the latest: {}",
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

/// A knob that another process has set.
fn external(out: &mut String, tenant: &TenantStatus, knob: &KnobStatus) {
    let _ = writeln!(
        out,
        "    external: another process has set it; the agent leaves it as it is"
    );
    if let Some(reason) = &knob.reason {
        let _ = writeln!(out, "    {reason}");
    }
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
        "    changes when: another process writes it. To give it back to the agent: {}",
        take(&tenant.path, &knob.knob).unwrap_or_else(|| {
            "restart the agent while the kernel's default stands there".to_owned()
        })
    );
}

/// The command that gives a knob back to the agent; `None` where a shell would not read it as it is.
fn take(tenant: &str, knob: &str) -> Option<String> {
    let is_of_host = knob.starts_with("vm.") || knob.starts_with("io.cost.");
    let name = match is_of_host {
        true => knob.to_owned(),
        false => format!("{}/{knob}", tenant.trim_matches('/')),
    };
    let is_plain = !name.contains(['\'', '`']);
    is_plain.then(|| format!("`sudo justitia take '{name}'`"))
}

/// A knob that the agent does not write any more.
fn given_up(out: &mut String, tenant: &TenantStatus, knob: &KnobStatus) {
    let why = knob.reason.as_ref().map(ToString::to_string);
    let take = take(&tenant.path, &knob.knob).map(|command| format!(", or with {command}"));
    let _ = writeln!(
        out,
        "    given up by the agent: {}\n    changes when: another process writes it. The agent tries it again after a \
         restart{}",
        why.unwrap_or_else(|| "the kernel refused its write".to_owned()),
        take.unwrap_or_default()
    );
}

/// That a killed agent has left a value, and what restores the one before.
fn left(original: &str) -> String {
    format!(
        "left by an agent that was killed; before: {}. To undo it: `sudo justitia reset`",
        amount(original)
    )
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
        Some("io.weight" | "io.bfq.weight") => (
            "its own weight, corrected by what its applications get of what its siblings that contend for the disk get".to_owned(),
            "the contention ends (then at once), its weight or another's changes, or they get another part",
        ),
        Some("memory.high") => (
            memory_high(io, tenant.other),
            "fewer than two such writers are left (then at once), its weight or another's changes, or free memory \
             changes",
        ),
        Some("vm.dirty_background_ratio") => (
            DIRTY_BACKGROUND.to_owned(),
            "the contention ends (then it is restored at once)",
        ),
        Some("vm.vfs_cache_pressure") => (
            VFS_CACHE_PRESSURE.to_owned(),
            "reclaimable slab is an eighth below its cap (then it is restored)",
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
        "the part of the entitlement that it uses (now {}) is protected from the kernel's own reclaim; its memory \
         that is not file pages (now {}) is added, because memory.low counts that too; {written}",
        bytes(tenant.protected),
        bytes(tenant.other),
    )
}

/// Knobs that the agent does not write, but which bound the tenant.
pub(super) fn others(out: &mut String, tenant: &TenantStatus, current: &CurrentValues) {
    for (file, value) in &current.knobs {
        let ours = tenant.knobs.iter().any(|k| k.knob == *file);
        let unset = matches!(value.as_str(), "" | "max" | "0") || value.ends_with(UNLIMITED);
        if ours || (unset && file != "memory.low") {
            continue;
        }
        let _ = writeln!(out, "  {} = {}", current.name(file), amount(value));
        if let Some(original) = current.left(file) {
            let _ = writeln!(out, "    {}", left(original));
        } else if unset {
            let _ = writeln!(
                out,
                "    not set, by the agent neither: nothing of its entitlement needs protection"
            );
        } else {
            of_others(out, tenant, file, current.left_unknown);
        }
    }
}

/// What is known of a value that is not the agent's.
fn of_others(out: &mut String, tenant: &TenantStatus, knob: &str, left_unknown: bool) {
    let who = match knob.split(' ').next() {
        Some("memory.low") => " (systemd's MemoryLow=, a container runtime)",
        Some("memory.min") => " (systemd's MemoryMin=, Kubernetes)",
        Some("memory.high") => " (systemd's MemoryHigh=)",
        Some("memory.max") => " (systemd's MemoryMax=, a container's memory limit)",
        Some("io.max") => {
            " (systemd's IOWriteBandwidthMax= and the like, docker's --device-write-bps)"
        }
        Some("io.latency") => {
            " (systemd's IODeviceLatencyTargetSec=). The agent does not divide a disk on which the administrator has set one"
        }
        _ => "",
    };
    let whose = if left_unknown {
        "the knob journal cannot be read, so a killed agent may have left it (`sudo justitia reset` says more); or another \
         process has set it"
    } else {
        "not written by the agent: another process has set it"
    };
    let _ = writeln!(out, "    {whose}; the kernel does not record which{who}");
    if let Some(command) = command(&tenant.path, knob) {
        let _ = writeln!(
            out,
            "    to undo it: `{command}`, and in the configuration of whoever wrote it"
        );
    }
}

/// `io.max` that limits nothing.
const UNLIMITED: &str = "rbps=max wbps=max riops=max wiops=max";

/// A knob's value, with sizes that can be read; of a device's line without the device, which the knob's name has.
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

// The rules of device bandwidth in words; their constants are the agent's.

/// The rule of `memory.high`, for a tenant with `other` bytes of other memory.
fn memory_high(policy: Option<&IoPolicyStatus>, other: u64) -> String {
    let mut text = format!(
        "the more memory a buffered writer may have, the more pages it may have dirty, and the faster the kernel lets it \
         write. While two or more buffered writers wait for the same disk, their file pages and the free memory are \
         divided among them as the disk's time is: that is each one's dirty budget. Its memory that is not file pages \
         (now {}) is added, because memory.high counts that too",
        bytes(other)
    );
    if let Some(policy) = policy {
        text += &format!(
            ". The budget is {} at least. What a writer holds beyond it is reclaimed, at most 1/{} of its memory at once; \
             while more than 1/{} of what is divided is free, it keeps {} times the budget. Written when off by more \
             than 1/{}",
            bytes(policy.min_dirty_budget),
            policy.reclaim_step,
            policy.ample_free,
            policy.ample_budget,
            policy.high_deadband
        );
    }
    text
}

/// The rule of `vm.vfs_cache_pressure`.
const VFS_CACHE_PRESSURE: &str = "a setting of the whole machine, in per cent of the usual: reclaim frees so much \
    of dentries and inodes. It is raised while reclaimable slab is above [slab] max_ratio. A value that the operator has \
    changed is left";

/// The rule of `vm.dirty_background_ratio`.
const DIRTY_BACKGROUND: &str = "a setting of the whole machine, in per cent of the memory that may be dirty: from \
    there on the kernel writes back in the background. While buffered writers wait for a disk, it is one below \
    vm.dirty_ratio, at which writers are throttled. A value that the operator has changed is left";

// The command that gives a knob the kernel's default.

/// A command for a shell, of a tenant's knob (`memory.low`, `io.max 8:0`). `None` for a knob without such a command, and for
/// names that no agent tells.
fn command(tenant: &str, knob: &str) -> Option<String> {
    let value = match knob {
        "memory.low" | "memory.min" => "0".to_owned(),
        "memory.high" | "memory.max" => "max".to_owned(),
        "vm.dirty_background_ratio" => {
            return Some("sysctl vm.dirty_background_ratio=10".to_owned());
        }
        "vm.vfs_cache_pressure" => return Some("sysctl vm.vfs_cache_pressure=100".to_owned()),
        _ => {
            let (file, device) = knob.split_once(' ')?;
            let unset = match file {
                "io.max" => UNLIMITED,
                "io.latency" => "target=0",
                _ => return None,
            };
            let (major, minor) = device.split_once(':')?;
            let number = |text: &str| text.parse::<u32>().ok();
            let (major, minor) = (number(major)?, number(minor)?);
            format!("'{major}:{minor} {unset}'")
        }
    };
    let file = knob.split(' ').next()?;
    let path = quoted(&format!(
        "/sys/fs/cgroup/{}/{file}",
        tenant.trim_matches('/')
    ))?;
    Some(format!("echo {value} >{path}"))
}

/// A path as a shell reads it. Cgroups are named by others: a name must not become a command. `$'…'` reads the escapes of
/// [`encode`](justitia_api::escape::encode) as that wrote them; `None` for what it did not write.
fn quoted(path: &str) -> Option<String> {
    decode(path)?;
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/_.@:-+".contains(c);
    if path.chars().all(is_plain) {
        return Some(path.to_owned());
    }
    let is_shown = |c: char| matches!(c, ' '..='~');
    path.chars()
        .all(is_shown)
        .then(|| format!("$'{}'", path.replace('\'', "\\'")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_knob_has_the_kernels_default() {
        for (knob, expected) in [
            (
                "memory.low",
                "echo 0 >/sys/fs/cgroup/a.slice/b@1.service/memory.low",
            ),
            (
                "memory.max",
                "echo max >/sys/fs/cgroup/a.slice/b@1.service/memory.max",
            ),
            (
                "io.max 8:0",
                "echo '8:0 rbps=max wbps=max riops=max wiops=max' >/sys/fs/cgroup/a.slice/b@1.service/io.max",
            ),
            (
                "io.latency 8:0",
                "echo '8:0 target=0' >/sys/fs/cgroup/a.slice/b@1.service/io.latency",
            ),
        ] {
            let found = command("a.slice/b@1.service", knob);
            assert_eq!(found.as_deref(), Some(expected));
        }
        let machine = command("-", "vm.dirty_background_ratio");
        assert_eq!(
            machine.as_deref(),
            Some("sysctl vm.dirty_background_ratio=10")
        );
    }

    /// What a shell makes of the path.
    fn read_by_a_shell(tenant: &str) -> String {
        let command = command(tenant, "memory.low").unwrap();
        let path = command.strip_prefix("echo 0 >").unwrap();
        let script = format!("printf %s {path}");
        let out = std::process::Command::new("bash")
            .args(["-c", &script])
            .output();
        String::from_utf8(out.unwrap().stdout).unwrap()
    }

    #[test]
    fn a_name_that_is_a_command_stays_a_name() {
        for (tenant, name) in [
            ("$(touch x)", "$(touch x)"),
            ("a'; touch x; '", "a'; touch x; '"),
            (r"dev-disk\x5cx2duuid.mount", r"dev-disk\x2duuid.mount"),
            (r"\x5c'; touch x #", r"\'; touch x #"),
            (r"a\x0ab", "a\nb"),
        ] {
            let expected = format!("/sys/fs/cgroup/{name}/memory.low");
            assert_eq!(read_by_a_shell(tenant), expected);
        }
    }

    #[test]
    fn a_name_that_no_agent_tells_has_no_command() {
        for tenant in [r"a\'; touch x #", "a\u{1b}[2J", "a\nb"] {
            assert_eq!(command(tenant, "memory.low"), None, "{tenant:?}");
        }
        for knob in ["io.max 8:0; touch x", "io.max", "cgroup.procs", ""] {
            assert_eq!(command("a", knob), None, "{knob:?}");
        }
    }
}
