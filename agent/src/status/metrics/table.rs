//! The metrics of the agent: name, type, unit, help, and source of the value. `docs/reference/metrics.md` is generated from
//! them.

use std::fmt::Write;

use justitia_api::escape::plain;
use justitia_api::{KnobOwner, TenantStatus};

use super::family::Source::{Agent, AgentBy, App, Tenant, TenantBy};
use super::family::Value::{Float, Whole};
use super::family::{Kind, LabelledValue, Metric, Page, Unit, Value};

/// All metrics, in the order of the page.
pub(super) fn metrics() -> impl Iterator<Item = &'static Metric> {
    AGENT.iter().chain(CACHE).chain(IO)
}

/// Each as `Kind "name" Unit: source, "help";`.
macro_rules! table {
    ($($kind:ident $name:literal $unit:ident: $source:expr, $help:literal;)*) => {
        &[$(Metric {
            name: $name,
            kind: Kind::$kind,
            unit: Unit::$unit,
            help: $help,
            source: $source,
        }),*]
    };
}

/// Metrics of the agent, the machine, and all tenants together.
const AGENT: &[Metric] = table! {
    Gauge "build_info" Number: AgentBy(&["version", "mode"], build),
        "Always 1; the labels are the agent's version, and whether it acts or only observes";
    Gauge "tenants" Number: Agent(|p| Some(count(p.status.tenants.len()))), "Tenants that the agent manages";
    Gauge "tenants_without_series" Number: Agent(|p| Some(count(p.status.tenants.len() - p.tenants.len()))),
        "Tenants without series of their own: beyond [metrics] max_tenants, or beyond what fits into a page of 16 MiB";
    Gauge "limitations" Number: Agent(|p| Some(count(p.status.limitations.len()))),
        "Limitations on this machine; justitia status lists them with their causes";
    Gauge "knobs_managed" Number: Agent(|p| Some(Whole(p.status.agent_usage.knobs))),
        "Knobs (files of cgroups, io.cost.qos and io.cost.model of the root among them, vm.dirty_background_ratio and vm.vfs_cache_pressure) whose value the agent has set and will restore";
    Gauge "knobs_external" Number: Agent(|p| Some(count(p.status.external.len()))),
        "Knobs that the agent leaves alone: another process has set them";
    Gauge "knobs_given_up" Number: Agent(|p| Some(count(p.status.given_up.len()))),
        "Knobs that the agent does not write any more until it ends: the kernel refused its write, or took too long for it";
    Gauge "probes_up" Number: Agent(|p| Some(flag(p.status.app_io_unavailable.is_none()))),
        "1 if the probes of what applications get are attached, 0 if not";
    Counter "probe_dropped_events" Number: AgentBy(&["kind"], dropped),
        "Events that the probes could not count, or not attribute to a tenant; justitia status says why";
    Gauge "memory_free" Bytes: Agent(|p| Some(Whole(p.status.memory.free))), "Free memory of the machine";
    Gauge "memory_headroom" Bytes: Agent(|p| Some(Whole(p.status.memory.free_headroom))),
        "Free memory that is kept: below it the agent reclaims page cache from tenants above their entitlement";
    Gauge "cache_divisible" Bytes: Agent(|p| Some(Whole(p.status.memory.cache_divisible))),
        "Memory that is divided by weight: the page cache, and the free memory above the headroom";
    Gauge "proportionality_variation" Number: Agent(|p| p.status.pv.map(Float)),
        "PV: the mean distance of the bytes that backlogged tenants' applications read and wrote from what their weights \
         say, relative to the lowest weight's; 0 is exact. Without [io] nothing divides these bytes. Absent while fewer \
         than two tenants are backlogged";
    Gauge "group_proportionality_variation" Number: AgentBy(&["tenant"], group_pv),
        "The same among the children of one tenant; the label of the top level is empty";
    Counter "agent_cpu" Seconds: Agent(|p| Some(Float(p.status.agent_usage.cpu))),
        "CPU time of the agent, reclaim on behalf of tenants included";
    Counter "control_loop_cpu" Seconds: Agent(|p| Some(Float(p.status.agent_usage.cpu_loop))),
        "CPU time of the agent's control loop: monitoring and planning, without reclaim";
    Gauge "agent_resident_memory" Bytes: Agent(|p| Some(Whole(p.status.agent_usage.resident))),
        "Resident memory of the agent";
    Counter "reclaim_errors" Number: Agent(|p| Some(Whole(p.status.agent_usage.errors))),
        "Requests of reclaim that the kernel refused";
    Counter "identity_errors" Number: Agent(|p| Some(Whole(p.status.agent_usage.identity_errors))),
        "Files of container runtimes and units that were there and could not be used: too long, no regular file of root, or \
         not understood";
    Counter "probe_read_errors" Number: Agent(|p| Some(Whole(p.status.agent_usage.probe_read_errors))),
        "Reads of the probes' counters that failed";
};

/// Metrics of each tenant: its kind, page cache and knobs.
const CACHE: &[Metric] = table! {
    Gauge "tenant_info" Number: TenantBy(&["kind", "name", "image", "weight_source"], info),
        "Always 1; the labels are what the cgroup belongs to, the name of that and its image, escaped, and where its weight \
         comes from: configuration, runtime, unit, cgroup, only_child, default";
    Gauge "weight_drift" Number: Tenant(|t| Some(flag(t.declared.as_ref()?.drift))),
        "1 if the kernel's io.weight and io.bfq.weight have another number than what was declared to the tenant's runtime or \
         in its unit, or than what its runtime makes of it; absent where nothing was declared";
    Gauge "tenant_weight" Number: Tenant(|t| Some(Whole(t.weight))), "Weight among its siblings, 1 to 10000";
    Gauge "tenant_backlogged" Number: Tenant(|t| Some(flag(t.backlogged))),
        "1 if over the last 10 s it wanted more I/O than it got (docs/guide/operate.md, Terms). Inner node: 1 if a leaf \
         below it is backlogged. 0 without probes";
    Gauge "tenant_cache" Bytes: Tenant(|t| Some(Whole(t.usage))),
        "Usage: file pages that are charged to the tenant, and its reclaimable slab";
    Gauge "tenant_cache_entitlement" Bytes: Tenant(|t| Some(Whole(t.entitlement))),
        "Entitlement: page cache that the tenant is entitled to, by its weight and by what others demand";
    Gauge "tenant_working_set" Bytes: Tenant(|t| t.known_working_set().map(Whole)),
        "Page cache that the tenant uses repeatedly; one page more would hardly save a read. Absent where nothing shows it: \
         where [cache] demand is usage, and with MGLRU where accesses are not sampled";
    Gauge "tenant_cache_protected" Bytes: Tenant(|t| Some(Whole(t.protected))),
        "The part of its entitlement that memory.low protects from the kernel's reclaim. Inner node: the sum of its \
         leaves'. Unmanaged tenant: 0, it has no memory.low";
    Counter "tenant_cache_reclaimed" Bytes: Tenant(|t| Some(Whole(t.reclaimed))),
        "Page cache that the agent has reclaimed from the tenant";
    Counter "tenant_cache_refaults" Number: Tenant(|t| Some(Whole(t.refaults))),
        "Pages read again after anyone had reclaimed them, since the cgroup was created";
    Gauge "tenant_cache_predicted_miss_ratio" Number: TenantBy(&["size"], predicted),
        "The part of its accesses that would miss if its page cache had half, the same or twice the size that it has now; \
         absent where accesses are not sampled";
    Gauge "tenant_knob" Number: TenantBy(&["knob"], knobs),
        "Value that the agent has set in a knob that is one number: bytes, or percent for vm.dirty_background_ratio and vm.vfs_cache_pressure";
};

/// Metrics of the I/O of each tenant that the probes see. 1 minus the part of `tenant_cache_fill` in `tenant_cache_read` is the
/// hit ratio.
const IO: &[Metric] = table! {
    Counter "tenant_io" Bytes: TenantBy(&["direction"], io_bytes),
        "Bytes that applications read from and wrote to regular files, cached or not";
    Counter "tenant_io_ops" Number: TenantBy(&["direction"], io_ops),
        "Calls of applications that read from or wrote to regular files";
    Counter "tenant_cache_read" Bytes: App(|a| Whole(a.cache_read_bytes)), "Bytes read through the page cache";
    Counter "tenant_cache_fill" Bytes: App(|a| Whole(a.cache_miss_bytes)),
        "Bytes that a device had to read into the page cache; 1 minus their part of the bytes read is the hit ratio";
    Counter "tenant_cache_demand_misses" Number: App(|a| Whole(a.misses)),
        "Reads and page faults whose first page was not in the page cache";
    Counter "tenant_io_throttled" Seconds: App(|a| Float(a.io_throttled)),
        "Time that block requests were delayed by io.max, summed over requests";
    Counter "tenant_dirty_throttled" Seconds: App(|a| Float(a.dirty_throttled)),
        "Time that writers were delayed in balance_dirty_pages until dirty pages had been written";
};

fn count(number: usize) -> Value {
    Whole(u64::try_from(number).unwrap_or(u64::MAX))
}

fn flag(is: bool) -> Value {
    Whole(u64::from(is))
}

fn build(page: &Page<'_>) -> Vec<LabelledValue> {
    let mode = if page.status.observe {
        "observe"
    } else {
        "act"
    };
    vec![(vec![page.status.version.clone(), mode.to_owned()], Whole(1))]
}

fn dropped(page: &Page<'_>) -> Vec<LabelledValue> {
    let drops = page.status.probe_drops.iter();
    drops
        .map(|drop| (vec![drop.what.clone()], Whole(drop.count)))
        .collect()
}

fn info(tenant: &TenantStatus) -> Vec<LabelledValue> {
    let image = tenant.image.as_deref().unwrap_or_default();
    let labels = vec![
        tenant.kind.label().to_owned(),
        plain(&tenant.name),
        plain(image),
        tenant.weight_source.label().to_owned(),
    ];
    vec![(labels, Whole(1))]
}

fn group_pv(page: &Page<'_>) -> Vec<LabelledValue> {
    let top = page.status.pv_top.map(|pv| (String::new(), pv));
    let inner = page.tenants.iter();
    let inner = inner.filter_map(|t| Some((t.path.clone(), t.pv?)));
    let all = top.into_iter().chain(inner);
    all.map(|(path, pv)| (vec![path], Float(pv))).collect()
}

fn predicted(tenant: &TenantStatus) -> Vec<LabelledValue> {
    let Some(curve) = &tenant.curve else {
        return Vec::new();
    };
    let sizes = [
        ("half", tenant.usage / 2),
        ("same", tenant.usage),
        ("twice", tenant.usage.saturating_mul(2)),
    ];
    let ratio = |bytes| Float(curve.miss_ratio(bytes));
    sizes
        .map(|(size, bytes)| (vec![size.to_owned()], ratio(bytes)))
        .to_vec()
}

fn knobs(tenant: &TenantStatus) -> Vec<LabelledValue> {
    let set = tenant.knobs.iter().filter(|k| k.owner == KnobOwner::Agent);
    set.filter_map(|k| Some((vec![k.knob.clone()], Whole(k.value.parse().ok()?))))
        .collect()
}

fn io_bytes(tenant: &TenantStatus) -> Vec<LabelledValue> {
    by_direction(tenant.app.as_ref().map(|a| (a.read_bytes, a.write_bytes)))
}

fn io_ops(tenant: &TenantStatus) -> Vec<LabelledValue> {
    by_direction(tenant.app.as_ref().map(|a| (a.reads, a.writes)))
}

fn by_direction(amounts: Option<(u64, u64)>) -> Vec<LabelledValue> {
    let Some((read, written)) = amounts else {
        return Vec::new();
    };
    vec![
        (vec!["read".to_owned()], Whole(read)),
        (vec!["write".to_owned()], Whole(written)),
    ]
}

/// The reference as Markdown.
#[must_use]
pub fn markdown() -> String {
    let mut out = HEAD.to_owned();
    for metric in metrics() {
        let kind = match metric.kind {
            Kind::Gauge => "gauge",
            Kind::Counter => "counter",
        };
        let labels: Vec<String> = metric.labels().iter().map(|l| format!("`{l}`")).collect();
        let (name, labels) = (metric.full_name(), labels.join(", "));
        let _ = writeln!(out, "| `{name}` | {kind} | {labels} | {} |", metric.help);
    }
    out
}

const HEAD: &str = "\
# Metrics

<!-- Made by `make reference` from agent/src/status/metrics/table.rs; do not edit. -->

The agent serves them at `http://127.0.0.1:9742/metrics` (`[metrics] listen`) in the OpenMetrics format. The label `tenant`
is the path of a cgroup below the cgroup mount; bytes outside printable ASCII, and `\\`, are written as `\\xNN`. `-` is the
unmanaged tenant: what is in no managed cgroup. These and the other words: [terms](../guide/operate.md#terms). A counter starts at 0 with the agent, unless its meaning says otherwise.
`alerts.yml` has alert and recording rules, `grafana.json` a dashboard: in `packaging/`, or in `/usr/share/justitia/` if the
package is installed.

| metric | type | labels | meaning |
|---|---|---|---|
";
