//! Why each knob of a tenant stands where it stands.
//!
//! Pure: the agent's status and what stands in the kernel's files go in, text comes out.

use std::fmt::Write;

use justitia_agent::tell::Status;
use justitia_agent::tell::status::{Holder, KnobStatus, TenantStatus, WeightFrom};
use justitia_share::num::to_f64;

use crate::units::{bytes, clock, latency, percent, rate, seconds};

/// Which tenant is meant: by its whole path, by the end of it, or by any part that only one has.
///
/// # Errors
/// The paths that could be meant: none, or several.
pub fn find(status: &Status, name: &str) -> Result<usize, Vec<String>> {
    let name = name.trim_start_matches("/sys/fs/cgroup").trim_matches('/');
    let name = if name == "outside" { "-" } else { name };
    let paths = || status.tenants.iter().map(|t| t.path.as_str()).enumerate();
    if let Some((i, _)) = paths().find(|(_, path)| *path == name) {
        return Ok(i);
    }
    let matching = |fits: &dyn Fn(&str) -> bool| -> Vec<(usize, &str)> {
        paths().filter(|(_, path)| fits(path)).collect()
    };
    let ends = matching(&|path| path.rsplit('/').next() == Some(name));
    let parts = matching(&|path| path.contains(name));
    match (ends.as_slice(), parts.as_slice()) {
        ([(only, _)], _) | ([], [(only, _)]) => Ok(*only),
        ([], several) | (several, _) => {
            Err(several.iter().map(|(_, path)| (*path).to_owned()).collect())
        }
    }
}

/// What is known of a cgroup that the agent does not manage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unmanaged {
    /// There is such a cgroup.
    pub exists: bool,
    /// It is the root.
    pub root: bool,
    /// It has the memory controller.
    pub memory: bool,
    /// The configuration excludes it, or a cgroup above it.
    pub excluded: bool,
}

/// Why a cgroup is not managed, and what would change that.
#[must_use]
pub fn unmanaged(path: &str, facts: Unmanaged) -> String {
    let path = path.trim_matches('/');
    let parent = path.rfind('/').map_or("", |at| &path[..=at]);
    if facts.root {
        "the root cgroup is what is divided, no tenant; its own processes are the tenant `outside`"
            .to_owned()
    } else if !facts.exists {
        format!("{path}: no such cgroup; `justitia status` lists the tenants")
    } else if facts.excluded {
        format!(
            "{path} is not managed: the configuration excludes it, or a cgroup above it (`exclude = true`). \
             Its pages count as `outside`. Taking that rule away would change it."
        )
    } else if facts.memory {
        format!(
            "{path} is not managed although it has the memory controller: it is younger than the last look \
             (try again), or a cgroup above it is not managed"
        )
    } else {
        format!(
            "{path} is not managed: it does not have the memory controller, so the kernel counts its pages at \
             the nearest cgroup above that has it. `echo +memory >/sys/fs/cgroup/{parent}cgroup.subtree_control` \
             (for systemd: MemoryAccounting=yes) would change it."
        )
    }
}

/// What is known of the machine beside the agent's status.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Standing {
    /// What stands in the tenant's cgroup's files now, by the knob's name, where that can be read.
    pub knobs: Vec<(String, String)>,
    /// What disks are called, by their numbers (`8:0`, `sda`).
    pub disks: Vec<(String, String)>,
}

impl Standing {
    /// A knob's name, with the name of the disk that it is for.
    fn name(&self, knob: &str) -> String {
        let disk = knob
            .split_once(' ')
            .and_then(|(_, number)| self.disks.iter().find(|(of, _)| of == number));
        disk.map_or_else(|| knob.to_owned(), |(_, name)| format!("{knob} ({name})"))
    }
}

/// Everything about one tenant.
#[must_use]
pub fn explain(status: &Status, index: usize, standing: &Standing) -> String {
    let Some(tenant) = status.tenants.get(index) else {
        return String::new();
    };
    let mut out = String::new();
    head(&mut out, status, tenant);
    entitlement(&mut out, status, tenant);
    if let Some(app) = &tenant.app {
        let hits = app.hit_ratio.map_or_else(
            || "nothing was read through the page cache".to_owned(),
            |ratio| format!("{} % of what was read came from the cache", percent(ratio)),
        );
        let held_up = app.held_up.map_or_else(String::new, |part| {
            format!("; held up by I/O {} % of the time", percent(part))
        });
        let contends = if tenant.contends {
            "so it contends"
        } else {
            "it does not contend"
        };
        let _ = writeln!(
            out,
            "\nApplications (last {:.0} s): read {}/s, written {}/s; {hits}{held_up}; {contends}",
            status.window,
            rate(app.read_rate),
            rate(app.write_rate),
        );
        if let Some(l) = &app.latency {
            let _ = writeln!(
                out,
                "  99 of 100 reads within {}, writes {}, fsyncs {}",
                latency(l.read_p99),
                latency(l.write_p99),
                latency(l.sync_p99)
            );
        }
    } else if let Some(blind) = &status.blind {
        let _ = writeln!(out, "\nApplications: not seen ({blind})");
    }
    let _ = writeln!(out, "\nKnobs");
    for knob in &tenant.knobs {
        held(&mut out, tenant, knob, standing);
    }
    let told = out.len();
    others(&mut out, tenant, &standing.knobs);
    if tenant.knobs.is_empty() && out.len() == told {
        let _ = writeln!(out, "  none that the agent has set");
    }
    taking(&mut out, status, tenant);
    decisions(&mut out, status, tenant, standing);
    out
}

fn head(out: &mut String, status: &Status, tenant: &TenantStatus) {
    let from = match tenant.weight_from {
        WeightFrom::Nobody => "the default: nobody has set io.weight or io.bfq.weight",
        WeightFrom::Cgroup => "from its cgroup's io.weight or io.bfq.weight",
        WeightFrom::OnlyChild => "from its only child, where it has no sibling to weigh against",
        WeightFrom::Configuration => "from the agent's configuration",
    };
    let siblings: u64 = status
        .tenants
        .iter()
        .filter(|t| t.parent == tenant.parent)
        .map(|t| t.weight)
        .sum();
    let name = if tenant.path == "-" {
        "outside (processes in no managed cgroup)"
    } else {
        &tenant.path
    };
    let mode = if status.observe {
        "; the agent only observes: nothing is changed"
    } else {
        ""
    };
    let _ = writeln!(out, "{name}{mode}");
    let _ = writeln!(
        out,
        "  weight {} ({from}), {} % of the {siblings} that it and its siblings weigh together",
        tenant.weight,
        percent(to_f64(tenant.weight) / to_f64(siblings.max(1))),
    );
}

fn entitlement(out: &mut String, status: &Status, tenant: &TenantStatus) {
    let of = match tenant.parent.and_then(|p| status.tenants.get(p)) {
        Some(parent) => format!("the {} of {}", bytes(parent.entitled), parent.path),
        None => format!(
            "{} (all file pages, and free memory above the reserve)",
            bytes(status.memory.capacity)
        ),
    };
    let over = tenant.usage.saturating_sub(tenant.entitled);
    let _ = writeln!(
        out,
        "\nPage cache: holds {}, entitled to {} of {of}",
        bytes(tenant.usage),
        bytes(tenant.entitled)
    );
    let _ = writeln!(
        out,
        "  rule: a cgroup's part is divided by weight among its children that demand page cache; what one leaves goes \
         to its siblings"
    );
    let demand = if !tenant.leaf {
        "it demands what its children demand".to_owned()
    } else if tenant.growing {
        "its cache grows, so it demands all it can get".to_owned()
    } else if tenant.idle > 5.0 {
        format!(
            "it has not used its cache for {}, so it demands no more than it holds, and less the longer that lasts",
            seconds(tenant.idle)
        )
    } else {
        "its cache does not grow, so it demands no more than it holds".to_owned()
    };
    let _ = writeln!(out, "  {demand}");
    if over > 0 && tenant.leaf {
        let _ = writeln!(
            out,
            "  {} above its entitlement: lent, and given back first when memory is short",
            bytes(over)
        );
    }
    if tenant.floor > 0 {
        let _ = writeln!(out, "  never below its floor of {}", bytes(tenant.floor));
    }
}

fn held(out: &mut String, tenant: &TenantStatus, knob: &KnobStatus, standing: &Standing) {
    let name = standing.name(&knob.knob);
    let now = standing
        .knobs
        .iter()
        .find(|(file, _)| *file == knob.knob)
        .map_or(knob.stands.as_str(), |(_, value)| value);
    let _ = match knob.by {
        Holder::Would => writeln!(
            out,
            "  {name} stands at {}; the agent would set {}",
            amount(now),
            amount(&knob.stands)
        ),
        _ => writeln!(out, "  {name} = {}", amount(now)),
    };
    if knob.by == Holder::Other {
        let _ = writeln!(
            out,
            "    put there by someone else: the agent leaves it to them as long as it runs, and never writes it"
        );
        if knob.knob == "memory.low" {
            let _ = writeln!(
                out,
                "    what it protects is a floor for the agent too, which takes no file pages below it"
            );
        }
        let _ = writeln!(out, "    would change it: only whoever wrote it");
        return;
    }
    if knob.by == Holder::Agent {
        let before = knob.before.as_deref().unwrap_or("?");
        let _ = writeln!(
            out,
            "    put there by the agent; before, and again when it ends: {}",
            amount(before)
        );
    }
    if !knob.why.is_empty() {
        let _ = writeln!(out, "    because: {}", knob.why);
    }
    let (rule, change) = rule(&knob.knob, tenant);
    if !rule.is_empty() {
        let _ = writeln!(out, "    rule: {rule}");
        let _ = writeln!(
            out,
            "    would change it: {change}, or someone else writing it (then it is theirs)"
        );
    }
}

/// From what a knob of the agent's follows, and what would change it.
fn rule(knob: &str, tenant: &TenantStatus) -> (String, &'static str) {
    match knob.split(' ').next() {
        Some("memory.low") => (
            format!(
                "what it demands of its entitlement ({}) is kept from the kernel's own reclaim; on top comes its memory \
                 beside file pages ({}), which memory.low counts too; moved when off by 1/32 and 1 MiB",
                bytes(tenant.protected),
                bytes(tenant.other)
            ),
            "its weight or a sibling's, more or less use of its cache, free memory",
        ),
        Some("io.max") => (
            "while tenants wait for the same disk, its time, but for a few percent that keep its queue short, is divided \
             by weight among those that use it; what one leaves goes to the others. The part that is allowed here is \
             told to the kernel as the bytes and requests per second that the disk lately did in so much time, times \
             the correction, which follows from what applications really got (1: no correction). Nobody is held below \
             256K/s or 16 requests/s, and without contention there is no limit"
                .to_owned(),
            "the end of the contention (then it goes at once), its weight or another's, what the others use",
        ),
        Some("memory.high") => (
            format!(
                "how fast the kernel lets a tenant write through the page cache follows from the room that its pages have, \
                 so while several such writers wait for a disk, that room is divided as the disk is; on top comes the \
                 memory beside file pages ({}); never less than 16M of room, and lowered step by step",
                bytes(tenant.other)
            ),
            "fewer than two such writers (then it goes at once), its weight or another's, free memory",
        ),
        _ => (String::new(), ""),
    }
}

/// Knobs that the agent has nothing to do with, but which bound the tenant all the same.
fn others(out: &mut String, tenant: &TenantStatus, standing: &[(String, String)]) {
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

/// What would be taken from it, and when.
fn taking(out: &mut String, status: &Status, tenant: &TenantStatus) {
    let memory = &status.memory;
    let _ = writeln!(
        out,
        "\nReclaim: {} taken by the agent so far",
        bytes(tenant.reclaimed)
    );
    let keep = tenant.entitled.max(tenant.floor).max(tenant.stuck);
    let over = tenant.usage.saturating_sub(keep);
    let short = memory.free < memory.reserve;
    let _ = writeln!(
        out,
        "  rule: when free memory ({} now) falls below the reserve that the agent keeps free ({}), those above their \
         entitlement give back clean file pages, in proportion to what they hold above it",
        bytes(memory.free),
        bytes(memory.reserve)
    );
    let now = if !tenant.leaf {
        "it is an inner node: pages are taken from its leaves".to_owned()
    } else if let Some(why) = &tenant.spared {
        format!("nothing is taken from it now: {why}")
    } else if over == 0 {
        "nothing is taken from it: it holds no more than its entitlement, its floor, or what is dirty"
            .to_owned()
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

fn decisions(out: &mut String, status: &Status, tenant: &TenantStatus, standing: &Standing) {
    let _ = writeln!(out, "\nLast decisions");
    let mut none = true;
    for decision in status.decisions.iter().filter(|d| d.path == tenant.path) {
        none = false;
        let began = status.time - status.uptime;
        let since = if decision.at - decision.since >= 1.0 {
            format!("{} to ", clock(began + decision.since))
        } else {
            String::new()
        };
        let _ = writeln!(
            out,
            "  {since}{} ({} ago): {}",
            clock(began + decision.at),
            seconds(status.uptime - decision.at),
            what(&decision.what, standing)
        );
        let _ = writeln!(out, "    {}", decision.why);
    }
    if none {
        let _ = writeln!(
            out,
            "  none about it in the {} that the agent has run",
            seconds(status.uptime)
        );
    }
}

/// What was decided, with names and sizes that can be read.
fn what(decision: &str, standing: &Standing) -> String {
    let set = decision
        .strip_prefix("set ")
        .and_then(|rest| rest.split_once(" to "));
    // Of what is set from one value to another, both are told in KiB.
    let Some((knob, to)) = set.filter(|(knob, _)| !knob.contains(" from ")) else {
        return decision.to_owned();
    };
    let (value, steps) = to.split_once(" in ").unwrap_or((to, ""));
    let steps = if steps.is_empty() {
        String::new()
    } else {
        format!(", in {steps}")
    };
    let name = standing.name(knob);
    format!("set {name} to {}{steps}", amount(value))
}

/// `io.max` that limits nothing.
const UNLIMITED: &str = "rbps=max wbps=max riops=max wiops=max";

/// A knob's value, with sizes that can be read; of `io.max` without the device, which the knob's name has.
fn amount(value: &str) -> String {
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

#[cfg(test)]
mod tests;
