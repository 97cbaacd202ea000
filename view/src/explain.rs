//! Why each knob of a tenant stands where it stands.
//!
//! Pure: the agent's status and what stands in the kernel's files go in, text comes out.

mod decisions;
mod knobs;
mod part;
mod unmanaged;

use std::fmt::Write;

use justitia_api::{DemandModel, Evidence, KnobOwner, Status, TenantStatus, WeightSource};
use justitia_share::live::{ACTIVE, HELD_UP};
use justitia_share::num::to_f64;

use decisions::decisions;
use justitia_api::units::{bytes, latency, percent, rate, seconds};
use knobs::{held, others};
pub use unmanaged::{Unmanaged, unmanaged};

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

/// How many names are offered for one that nobody has.
const NEAREST: usize = 5;

/// The tenants that are called most like `name`, the likeliest first: for whoever has mistyped it.
#[must_use]
pub fn nearest(status: &Status, name: &str) -> Vec<String> {
    let name = name.trim_start_matches("/sys/fs/cgroup").trim_matches('/');
    let alike = |path: &str| {
        let last = path.rsplit('/').next().unwrap_or(path);
        let [last, whole] = [last, path].map(|of| strsim::jaro_winkler(name, of));
        last.max(whole)
    };
    let paths = status.tenants.iter().map(|t| t.path.as_str());
    let mut names: Vec<(f64, &str)> = paths
        .map(|path| if path == "-" { "outside" } else { path })
        .map(|path| (alike(path), path))
        .collect();
    names.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(b.1)));
    let names = names.into_iter().take(NEAREST);
    names.map(|(_, path)| path.to_owned()).collect()
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
    applications(&mut out, status, tenant);
    let _ = writeln!(out, "\nKnobs");
    for knob in &tenant.knobs {
        held(&mut out, tenant, knob, standing);
    }
    let told = out.len();
    others(&mut out, tenant, &standing.knobs);
    above(&mut out, status, tenant);
    if tenant.knobs.is_empty() && out.len() == told {
        let _ = writeln!(out, "  none that the agent has set");
    }
    taking(&mut out, status, tenant);
    decisions(&mut out, status, tenant, standing);
    out
}

/// Limits of ours on a cgroup that it is in: what it waits for may be those.
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
                "  {knob} of {}, which it is in, limits it as well: disks are divided there, since somebody else divides \
                 it further (`justitia explain {}` says more)",
                up.path, up.path
            );
        }
        next = up.parent.filter(|parent| Some(*parent) < next);
    }
}

fn head(out: &mut String, status: &Status, tenant: &TenantStatus) {
    let from = match tenant.weight_source {
        WeightSource::Default => "the default: nobody has set io.weight or io.bfq.weight",
        WeightSource::Cgroup => "from its cgroup's io.weight or io.bfq.weight",
        WeightSource::OnlyChild => "from its only child, where it has no sibling to weigh against",
        WeightSource::Configuration => "from the agent's configuration",
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
        "  weight {} ({from}), {} % of the {siblings} that it and its siblings weigh together, idle ones \
         included",
        tenant.weight,
        percent(to_f64(tenant.weight) / to_f64(siblings.max(1))),
    );
}

/// What its applications get.
fn applications(out: &mut String, status: &Status, tenant: &TenantStatus) {
    let Some(app) = &tenant.app else {
        if let Some(blind) = &status.app_io_unavailable {
            let _ = writeln!(out, "\nApplications: not seen ({blind})");
        }
        return;
    };
    let hits = app.hit_ratio.map_or_else(
        || "nothing was read through the page cache".to_owned(),
        |ratio| format!("{} % of what was read came from the cache", percent(ratio)),
    );
    let held_up = app.io_stalled.map_or_else(String::new, |part| {
        format!("; held up by I/O {} % of the time", percent(part))
    });
    let contended = if tenant.backlogged {
        ", so it contended".to_owned()
    } else {
        // Whether it waited enough is known where the kernel measures it, or else whether it used the disk.
        format!(
            "; over the whole {:.0} s that is not contending (which takes I/O in {:.0} % of its seconds, and being held up for {:.0} %)",
            status.window,
            ACTIVE * 100.0,
            HELD_UP * 100.0
        )
    };
    let _ = writeln!(
        out,
        "\nApplications (last {:.0} s): read {}/s, written {}/s; {hits}{held_up}{contended}",
        status.window,
        rate(app.read_rate),
        rate(app.write_rate),
    );
    let limited = |holder, knob: &str| holder == KnobOwner::Agent && knob.starts_with("io.max ");
    if !tenant.backlogged && tenant.knobs.iter().any(|k| limited(k.owner, &k.knob)) {
        let _ = writeln!(
            out,
            "  its limit under Knobs follows from what happens on the disk now, within a second"
        );
    }
    if tenant.leaf && tenant.growing && app.read_rate + app.write_rate <= 0.0 {
        let _ = writeln!(
            out,
            "  its cache grows all the same, by what no call read or wrote in that time, such as mapped files \
             ({:.0} accesses a second found their page absent)",
            app.miss_rate
        );
    }
    if let Some(l) = &app.latency {
        let _ = writeln!(
            out,
            "  99 of 100 reads within {}, writes {}, fsyncs {}",
            latency(l.read_p99),
            latency(l.write_p99),
            latency(l.sync_p99)
        );
    }
}

fn entitlement(out: &mut String, status: &Status, tenant: &TenantStatus) {
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
    if tenant.floor > 0 {
        let _ = writeln!(out, "  never below its floor of {}", bytes(tenant.floor));
    }
}

/// What a tenant demands, in both rounds.
fn demand(status: &Status, tenant: &TenantStatus) -> String {
    if !tenant.leaf {
        return "it demands what its children demand".to_owned();
    }
    let unsure = tenant.observed_for < 120.0;
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
fn taking(out: &mut String, status: &Status, tenant: &TenantStatus) {
    let memory = &status.memory;
    let _ = writeln!(
        out,
        "\nReclaim: {} taken by the agent so far",
        bytes(tenant.reclaimed)
    );
    let keep = tenant
        .entitlement
        .max(tenant.floor)
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
        } else if tenant.usage <= tenant.floor {
            format!("no more than its floor ({})", bytes(tenant.floor))
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

#[cfg(test)]
mod tests;
