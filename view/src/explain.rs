//! Why each knob of a tenant has its value.
//!
//! Pure: the agent's status and the current values of the kernel's files go in, text comes out.

mod cache;
mod knobs;
#[cfg(test)]
mod tests;

use self::knobs::amount;
use crate::clock::clock;
use cache::{entitlement, taking};
use justitia_api::escape::plain;
use justitia_api::units::{percent, rate, seconds};
use justitia_api::{Action, KnobOwner, Status, TenantStatus, WeightSource};
use justitia_share::num::to_f64;
use knobs::{held, others};
use std::fmt::Write;

pub use knobs::{CurrentValues, LeftKnob};

/// Everything about one tenant.
#[must_use]
pub fn explain(status: &Status, index: usize, current: &CurrentValues) -> String {
    let Some(tenant) = status.tenants.get(index) else {
        return String::new();
    };
    let mut out = String::new();
    head(&mut out, status, index, tenant);
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
        let mut ours = up.knobs.iter().filter(|k| k.owner == KnobOwner::Agent);
        if ours.any(|k| k.knob == "memory.high") {
            let _ = writeln!(
                out,
                "  memory.high of its ancestor {} limits it too: that subtree is delegated, and disks are divided among \
                 delegated subtrees, not inside them (see `justitia explain {}`)",
                up.path, up.path
            );
        }
        next = up.parent.filter(|parent| Some(*parent) < next);
    }
}

fn head(out: &mut String, status: &Status, index: usize, tenant: &TenantStatus) {
    let from = source(tenant.weight_source);
    let all = status.tenants.iter().enumerate();
    let siblings = all
        .filter(|(_, t)| t.parent == tenant.parent)
        .map(|(at, _)| competing_weight(status, at))
        .fold(0, u64::saturating_add);
    let competes = competing_weight(status, index);
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
    identity(out, tenant);
    let _ = writeln!(
        out,
        "  weight {} ({from}), {} % of {siblings}, the sum of its and its siblings' weights, idle ones included",
        tenant.weight,
        percent(to_f64(competes) / to_f64(siblings.max(1))),
    );
    declared(out, tenant);
    if tenant.sums_weights {
        let _ = writeln!(
            out,
            "  for page cache its children compete with its siblings, with {competes} together, unless it has a limit or a minimum: nobody has set its weight"
        );
    }
}

/// Where a weight comes from, in words.
const fn source(source: WeightSource) -> &'static str {
    match source {
        WeightSource::Default => "the default: io.weight and io.bfq.weight are 100",
        WeightSource::Cgroup => "from its cgroup's io.weight or io.bfq.weight",
        WeightSource::OnlyChild => "from its only child, which has no sibling",
        WeightSource::Unit => "from IOWeight= of its unit",
        WeightSource::Runtime => "as its runtime was told",
        WeightSource::Configuration => "from the agent's configuration",
    }
}

/// What a tenant is, beside its name, and its cgroup.
fn identity(out: &mut String, tenant: &TenantStatus) {
    if tenant.name.is_empty() {
        return;
    }
    let image = tenant.image.as_ref();
    let image = image.map_or_else(String::new, |image| format!(" of {}", plain(image)));
    let part = match tenant.part {
        Some(_) => ", a part of it",
        None => "",
    };
    let _ = writeln!(
        out,
        "  {}{image}{part}, cgroup {}",
        tenant.kind.words(),
        tenant.path
    );
    if !tenant.labels.is_empty() {
        let labels: Vec<String> = tenant.labels.iter().map(|label| plain(label)).collect();
        let _ = writeln!(out, "  labels {}", labels.join(", "));
    }
}

/// What was declared, and what the kernel has instead.
fn declared(out: &mut String, tenant: &TenantStatus) {
    let Some(declared) = &tenant.declared else {
        return;
    };
    let number = |number: Option<u64>| number.map_or_else(|| "none".to_owned(), |n| n.to_string());
    let (io, bfq) = (number(declared.io_weight), number(declared.io_bfq_weight));
    let converted = declared.converted.map_or_else(String::new, |converted| {
        format!(" (runtimes write {converted} to io.weight for it)")
    });
    let _ = writeln!(
        out,
        "  declared: {} in {}{converted}; the kernel has io.weight {io}, io.bfq.weight {bfq}",
        declared.weight,
        plain(&declared.file)
    );
    if declared.drift {
        let counts = if tenant.weight_source == declared.source {
            "Justitia divides by what was declared"
        } else {
            "Justitia divides by neither: a rule of its configuration comes first"
        };
        let _ = writeln!(
            out,
            "  drift: neither is what was declared. A program wrote it after the runtime did, as systemd does when it reloads. \
             {counts}; the kernel's io.cost and BFQ go by their files, where `[weights] restore = true` has it written back unless \
             somebody means what stands there"
        );
    }
}

/// The weight with which a tenant competes for page cache ([`TenantStatus::sums_weights`]).
fn competing_weight(status: &Status, index: usize) -> u64 {
    let Some(tenant) = status.tenants.get(index) else {
        return 0;
    };
    if !tenant.sums_weights {
        return tenant.weight;
    }
    // A child comes after its parent. In a damaged recording it may not, and would be its own ancestor.
    let later = status.tenants.iter().enumerate().skip(index + 1);
    let children = later.filter(|(_, t)| t.parent == Some(index));
    let demand = children.filter(|(_, t)| !t.leaf || t.demand != Some(0));
    let sum = demand.map(|(at, _)| competing_weight(status, at));
    let sum = sum.fold(0, u64::saturating_add);
    if sum > 0 { sum } else { tenant.weight }
}

/// Which tenant is meant: by its whole path, by the name of its container, machine or unit, by the end of its path, or by any
/// part of that which only one has. The unmanaged tenant is
/// `unmanaged`, `(unmanaged)` or `-`.
///
/// # Errors
/// The paths that could be meant: none, or several.
pub fn find(status: &Status, name: &str) -> Result<usize, Vec<String>> {
    let name = name.trim_start_matches("/sys/fs/cgroup").trim_matches('/');
    let name = match name {
        // As tables show it.
        "unmanaged" | "(unmanaged)" => "-",
        "" => return Err(Vec::new()),
        other => other,
    };
    let paths = || status.tenants.iter().map(|t| t.path.as_str()).enumerate();
    if let Some((i, _)) = paths().find(|(_, path)| *path == name) {
        return Ok(i);
    }
    // As tables show it, or as its owner calls it; a part is meant only where it is named, too.
    let called = |t: &TenantStatus| t.display_name() == name || t.part.is_none() && t.name == name;
    let named = status.tenants.iter().enumerate();
    let named: Vec<usize> = named.filter(|(_, t)| called(t)).map(|(i, _)| i).collect();
    match named.as_slice() {
        [] => {}
        [only] => return Ok(*only),
        several => {
            let tenants = several.iter().filter_map(|i| status.tenants.get(*i));
            return Err(tenants.map(|t| t.path.clone()).collect());
        }
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

/// How many names are offered for one that no tenant has.
const NEAREST: usize = 5;

/// The tenants that are called most like `name`, the likeliest first: for a name that was mistyped.
#[must_use]
pub fn nearest(status: &Status, name: &str) -> Vec<String> {
    let name = name.trim_start_matches("/sys/fs/cgroup").trim_matches('/');
    let alike = |path: &str| {
        let last = path.rsplit('/').next().unwrap_or(path);
        let [last, whole] = [last, path].map(|of| strsim::jaro_winkler(name, of));
        last.max(whole)
    };
    let whole = status.tenants.iter().filter(|t| t.part.is_none());
    let names = whole.map(|t| match t {
        t if t.is_unmanaged() => "unmanaged".to_owned(),
        // It cannot be given as it is shown.
        t if t.name.is_empty() => t.path.clone(),
        t => t.display_name(),
    });
    let mut names: Vec<(f64, String)> = names.map(|name| (alike(&name), name)).collect();
    names.sort_unstable_by(|a, b| b.0.total_cmp(&a.0).then_with(|| a.1.cmp(&b.1)));
    let names = names.into_iter().take(NEAREST);
    names.map(|(_, name)| name).collect()
}

/// What a tenant would have to do to be backlogged.
fn backlogged_rule(status: &Status, tenant: &TenantStatus) -> String {
    if !tenant.leaf {
        return "no tenant below it is".to_owned();
    }
    let percent = |part: f64| format!("{:.0} %", 100.0 * part);
    let active = percent(status.policy.backlogged_active);
    let stalled = match tenant.app.and_then(|app| app.io_stalled) {
        Some(_) => format!(
            "and be stalled {} of the time",
            percent(status.policy.backlogged_stalled)
        ),
        None => "and use the disk (this kernel has no PSI)".to_owned(),
    };
    format!(
        "it would have to move bytes in {active} of the seconds, or be stalled on I/O {active} of the time; {stalled}"
    )
}

/// What its applications get.
fn applications(out: &mut String, status: &Status, tenant: &TenantStatus) {
    let Some(app) = &tenant.app else {
        if let Some(why) = &status.app_io_unavailable {
            let _ = writeln!(out, "\nApplications: not known ({why})");
        }
        return;
    };
    let hits = app.hit_ratio.map_or_else(
        || "nothing was read through the page cache".to_owned(),
        |ratio| format!("{} % of that came from the cache", percent(ratio)),
    );
    let stalled = app.io_stalled.map_or_else(String::new, |part| {
        format!("; stalled on I/O {} % of the time", percent(part))
    });
    let backlogged = if tenant.backlogged {
        ": backlogged".to_owned()
    } else {
        format!("; not backlogged: {}", backlogged_rule(status, tenant))
    };
    let _ = writeln!(
        out,
        "\nApplications (last {:.0} s): written {}/s, read {}/s; {hits}{stalled}{backlogged}",
        status.window,
        rate(app.write_rate),
        rate(app.read_rate),
    );
    if tenant.leaf && tenant.growing && app.read_rate + app.write_rate <= 0.0 {
        let _ = writeln!(
            out,
            "  its cache grows though no call read or wrote in that time, as by mapped files ({:.0} accesses a second \
             missed the cache)",
            app.miss_rate
        );
    }
}

fn decisions(out: &mut String, status: &Status, tenant: &TenantStatus, current: &CurrentValues) {
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
            decision.what_with(&|knob| current.name(knob), &amount)
        );
        let _ = writeln!(out, "    {}", decision.reason);
    }
    for line in back_and_forth(status, tenant, current) {
        let _ = writeln!(out, "  {line}");
    }
    if none {
        let _ = writeln!(
            out,
            "  none about it since the agent's start, {} ago",
            seconds(status.uptime)
        );
    }
}

/// Which knobs were set and restored more than once in the last minute.
fn back_and_forth(status: &Status, tenant: &TenantStatus, current: &CurrentValues) -> Vec<String> {
    let mut knobs: Vec<(&str, u32, u32)> = Vec::new();
    let lately = |at: f64| status.uptime - at <= MINUTE;
    for decision in &status.decisions {
        if decision.path != tenant.path || !lately(decision.at) {
            continue;
        }
        let (knob, set) = match &decision.action {
            Action::Set {
                knob, from: None, ..
            } => (knob.as_str(), true),
            Action::Restore { knob } => (knob.as_str(), false),
            _ => continue,
        };
        let at = knobs.iter().position(|(known, ..)| *known == knob);
        let at = at.unwrap_or_else(|| {
            knobs.push((knob, 0, 0));
            knobs.len() - 1
        });
        if let Some((_, sets, backs)) = knobs.get_mut(at) {
            *sets += u32::from(set);
            *backs += u32::from(!set);
        }
    }
    knobs
        .into_iter()
        .filter(|(_, sets, backs)| *backs > 0 && sets + backs > 2)
        .map(|(knob, sets, backs)| {
            format!(
                "{} alternates: in the last minute it was set {} and restored {}, by the decisions that are kept",
                current.name(knob),
                times(sets),
                times(backs)
            )
        })
        .collect()
}

fn times(count: u32) -> String {
    match count {
        1 => "once".to_owned(),
        _ => format!("{count} times"),
    }
}

/// Seconds.
const MINUTE: f64 = 60.0;

// Why a cgroup is not managed.

/// What is known of a cgroup that the agent does not manage.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unmanaged {
    /// There is such a cgroup.
    pub exists: bool,
    /// It is the root.
    pub root: bool,
    /// It has the memory controller.
    pub memory: bool,
    /// The configuration excludes it, or a cgroup above it.
    pub excluded: bool,
    /// It is deeper below the root than cgroups are tracked.
    pub too_deep: bool,
    /// What the agent says of cgroups that it does not track on their own, with the bound of each.
    pub bounds: Vec<String>,
    /// The nearest cgroup above it that has the memory controller; empty for the root.
    pub above: String,
    /// The tenants whose names are nearest, for a name that no cgroup has.
    pub nearest: Vec<String>,
}

/// Why a cgroup is not managed, and what would change that: its path, and a line for each.
#[must_use]
pub fn unmanaged(path: &str, facts: &Unmanaged) -> String {
    let path = path.trim_matches('/');
    if facts.root {
        "the root cgroup is no tenant: its memory is what is divided; its own processes belong to the tenant `unmanaged`"
            .to_owned()
    } else if !facts.exists {
        let nearest: String = facts.nearest.iter().map(|n| format!("\n  {n}")).collect();
        let nearest = if nearest.is_empty() {
            nearest
        } else {
            format!("; the nearest names of tenants are{nearest}")
        };
        format!("{path}: no tenant has this name, and no cgroup this path{nearest}")
    } else if facts.excluded {
        format!(
            "{path}\n  not managed: the configuration excludes it, or a cgroup above it (`exclude = true`); its pages \
             belong to the tenant `unmanaged`\n  to change it: remove that rule"
        )
    } else if facts.memory {
        format!(
            "{path}\n  not managed although it has the memory controller: {}",
            beyond(facts)
        )
    } else {
        let at = if facts.above.is_empty() {
            "the root cgroup, that is, in the tenant `unmanaged`".to_owned()
        } else {
            format!("{}, the nearest cgroup above that has it", facts.above)
        };
        format!(
            "{path}\n  not managed: it does not have the memory controller, so the kernel counts its pages at {at}\n  \
             to change it: {}",
            remedy(path, &facts.above)
        )
    }
}

/// Which bound a cgroup with the memory controller is beyond.
fn beyond(facts: &Unmanaged) -> String {
    const COUNTED: &str = "its pages count for the nearest managed cgroup above it";
    if facts.too_deep {
        format!("it is too deep below the root; {COUNTED}")
    } else if facts.bounds.is_empty() {
        "it was created after the last scan (try again)".to_owned()
    } else {
        let bounds = facts.bounds.join("\n    ");
        format!(
            "a bound of the agent (then {COUNTED}), or it was created after the last scan (try again). Bounds that were \
             reached:\n    {bounds}"
        )
    }
}

/// The limitations of a status that tell of cgroups that are not tracked on their own.
#[must_use]
pub fn bounds(limitations: &[String]) -> Vec<String> {
    let bounds = limitations.iter();
    let bounds = bounds.filter_map(|limitation| limitation.strip_prefix("Tenants: "));
    bounds.map(str::to_owned).collect()
}

/// What gives a cgroup the memory controller that `above` has.
fn remedy(path: &str, above: &str) -> String {
    let between = path.strip_prefix(above).unwrap_or(path).trim_matches('/');
    let mut parent = above.to_owned();
    let mut commands = Vec::new();
    let mut name = "";
    for child in between.split('/') {
        let slash = if parent.is_empty() { "" } else { "/" };
        commands.push(format!(
            "`echo +memory >/sys/fs/cgroup/{parent}{slash}cgroup.subtree_control`"
        ));
        parent = format!("{parent}{slash}{child}");
        name = child;
    }
    let unit = UNITS.iter().any(|kind| name.ends_with(kind));
    let systemd = if unit {
        format!("MemoryAccounting=yes in its unit {name}")
    } else {
        format!(
            "{name} is no unit by its name: MemoryAccounting= has no effect, its creator has to enable the controller"
        )
    };
    format!("{}; under systemd, {systemd}", commands.join(", then "))
}

/// Units that have a cgroup.
const UNITS: [&str; 6] = [".service", ".scope", ".slice", ".socket", ".mount", ".swap"];
