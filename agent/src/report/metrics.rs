//! OpenMetrics: the status as series.
//!
//! Whoever scrapes is a client of the status socket like any other, so a scrape costs the loop what a status
//! does. Labels are cgroup paths, escaped as everywhere (see [`escape`](crate::escape)).

use std::sync::atomic::AtomicU64;

use prometheus_client::encoding::{EncodeLabelSet, text::encode};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};

use justitia_metrics_http::label;

use justitia_api::{AppStatus, Status, TenantStatus};

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Tenant {
    tenant: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Direction {
    tenant: String,
    direction: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Sized {
    tenant: String,
    size: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Percentile {
    tenant: String,
    operation: &'static str,
    percentile: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct KnobOf {
    tenant: String,
    knob: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct What {
    what: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Build {
    version: String,
    mode: &'static str,
}

type Float = Gauge<f64, AtomicU64>;
type Whole = Gauge<u64, AtomicU64>;
type Seconds = Counter<f64, AtomicU64>;

/// A page is not longer than this, bytes.
pub const LARGEST: usize = 16 << 20;
/// The series of a tenant that has all of them.
const SERIES: usize = 29;
/// A series without its label's value, bytes: its name, the label's name, the number.
const LINE: usize = 80;

/// The text of a scrape: OpenMetrics 1.0, [`LARGEST`] bytes at most. The first `most` tenants, parents first, have
/// series of their own, as far as there is room; how many are left out is a series too.
///
/// # Errors
/// If it cannot be written down, which formatting a string never is.
pub fn text(status: &Status, most: usize) -> Result<String, String> {
    let mut told = fitting(status, most);
    loop {
        let text = page(status, told)?;
        if text.len() <= LARGEST || told == 0 {
            return Ok(text);
        }
        told /= 2;
    }
}

/// How many tenants find room in a page, by the lengths of their paths: so one that is far too long is never made.
fn fitting(status: &Status, most: usize) -> usize {
    let mut room = LARGEST;
    let fits = |tenant: &&TenantStatus| {
        // A label has each backslash twice.
        let path = tenant.path.len() + tenant.path.matches('\\').count();
        let needs = SERIES * (LINE + path);
        let fits = needs <= room;
        room = room.saturating_sub(needs);
        fits
    };
    status.tenants.iter().take(most).take_while(fits).count()
}

/// The page with the first `told` tenants.
fn page(status: &Status, told: usize) -> Result<String, String> {
    let mut registry = Registry::with_prefix("justitia");
    let tenants = status.tenants.get(..told).unwrap_or_default();
    machine(status, tenants, &mut registry);
    cost(status, &mut registry);
    cache(tenants, &mut registry);
    predicted(tenants, &mut registry);
    applications(tenants, &mut registry);
    latency(tenants, &mut registry);
    knobs(tenants, &mut registry);
    let mut text = String::new();
    encode(&mut text, &registry).map_err(|e| e.to_string())?;
    Ok(text)
}

fn of(tenant: &TenantStatus) -> Tenant {
    Tenant {
        tenant: label(&tenant.path),
    }
}

fn machine(status: &Status, told: &[TenantStatus], registry: &mut Registry) {
    let build = Family::<Build, Whole>::default();
    registry.register(
        "agent",
        "Always 1; its labels say the agent's version, and whether it acts or only observes",
        build.clone(),
    );
    let mode = if status.observe { "observe" } else { "act" };
    let version = status.version.clone();
    build.get_or_create(&Build { version, mode }).set(1);
    let mut whole = |name: &str, help: &str, value: usize| {
        let gauge = Whole::default();
        gauge.set(u64::try_from(value).unwrap_or(u64::MAX));
        registry.register(name, help, gauge);
    };
    whole(
        "tenants",
        "Tenants that the agent manages",
        status.tenants.len(),
    );
    whole(
        "tenants_without_series",
        "Tenants without series of their own, beyond the configured number or what a page has room for",
        status.tenants.len() - told.len(),
    );
    whole(
        "degradations",
        "Things that work less well here than they could; `justitia status` lists them with their causes",
        status.limits.len(),
    );
    whole(
        "knobs_yielded",
        "Knobs that someone else has written, and that the agent leaves alone",
        status.yielded.len(),
    );
    whole(
        "probes_up",
        "1 if the probes that see what applications get work, 0 if not",
        usize::from(status.blind.is_none()),
    );
    let losses = Family::<What, Counter>::default();
    registry.register(
        "probe_losses",
        "What the probes could not count or not tell apart, for want of room or otherwise; `justitia status` \
         says why",
        losses.clone(),
    );
    for loss in &status.losses {
        let what = label(&loss.what);
        losses.get_or_create(&What { what }).inc_by(loss.count);
    }
    let memory = &status.memory;
    let sizes = [
        ("memory_free", "Memory that nobody uses", memory.free),
        (
            "memory_reserve",
            "Free memory below which tenants above their entitlement give back",
            memory.reserve,
        ),
        (
            "cache_capacity",
            "What is divided by weight: all file pages, and the free memory above the reserve",
            memory.capacity,
        ),
    ];
    for (name, help, value) in sizes {
        let gauge = Whole::default();
        gauge.set(value);
        registry.register_with_unit(name, help, Unit::Bytes, gauge);
    }
    if let Some(pv) = status.pv {
        let gauge = Float::default();
        gauge.set(pv);
        registry.register(
            "proportionality_variation",
            "Mean distance of what contending tenants got from what their weights say, both relative to the \
             lowest weight's; 0 is perfect, absent while fewer than two contend",
            gauge,
        );
    }
    let groups = Family::<Tenant, Float>::default();
    registry.register(
        "group_proportionality_variation",
        "The same within one group of siblings, labelled by its parent; the root's label is empty",
        groups.clone(),
    );
    let top = status.pv_top.map(|pv| (String::new(), pv));
    let inner = told.iter().filter_map(|t| Some((label(&t.path), t.pv?)));
    for (tenant, pv) in top.into_iter().chain(inner) {
        groups.get_or_create(&Tenant { tenant }).set(pv);
    }
}

fn cost(status: &Status, registry: &mut Registry) {
    let cost = &status.cost;
    let cpu = Seconds::default();
    cpu.inner()
        .store(cost.cpu.to_bits(), std::sync::atomic::Ordering::Relaxed);
    registry.register_with_unit(
        "agent_cpu",
        "CPU time of the agent itself, reclaim on behalf of tenants included",
        Unit::Seconds,
        cpu,
    );
    let cpu = Seconds::default();
    cpu.inner().store(
        cost.cpu_loop.to_bits(),
        std::sync::atomic::Ordering::Relaxed,
    );
    registry.register_with_unit(
        "agent_loop_cpu",
        "CPU time of the agent's observing and planning alone",
        Unit::Seconds,
        cpu,
    );
    let resident = Whole::default();
    resident.set(cost.resident);
    registry.register_with_unit(
        "agent_resident",
        "Resident memory of the agent itself",
        Unit::Bytes,
        resident,
    );
    let held = Whole::default();
    held.set(cost.knobs);
    registry.register("knobs_held", "Knobs that the agent holds", held);
    let errors: Counter = Counter::default();
    errors.inc_by(cost.errors);
    registry.register(
        "errors",
        "Reclaim orders that the kernel refused, and readings of the probes that failed",
        errors,
    );
}

fn predicted(tenants: &[TenantStatus], registry: &mut Registry) {
    let family = Family::<Sized, Float>::default();
    registry.register(
        "tenant_cache_predicted_miss_ratio",
        "The part of a tenant's accesses that would miss if its page cache had half, once or twice the size that it has \
         now; absent where its accesses are not seen",
        family.clone(),
    );
    for tenant in tenants {
        let Some(curve) = &tenant.curve else { continue };
        for (size, bytes) in [
            ("half", tenant.usage / 2),
            ("same", tenant.usage),
            ("twice", tenant.usage.saturating_mul(2)),
        ] {
            let tenant = label(&tenant.path);
            let series = family.get_or_create(&Sized { tenant, size });
            series.set(curve.miss_ratio(bytes));
        }
    }
}

fn cache(tenants: &[TenantStatus], registry: &mut Registry) {
    let mut level = |name: &str, help: &str, value: fn(&TenantStatus) -> u64| {
        let family = Family::<Tenant, Whole>::default();
        registry.register_with_unit(name, help, Unit::Bytes, family.clone());
        for tenant in tenants {
            family.get_or_create(&of(tenant)).set(value(tenant));
        }
    };
    level(
        "tenant_cache_useful",
        "File pages that the tenant uses again; a page more would hardly save a read",
        |t| t.useful,
    );
    level(
        "tenant_usage",
        "File pages that a tenant holds in the page cache",
        |t| t.usage,
    );
    level(
        "tenant_entitlement",
        "What a tenant's weight and the others' demands entitle it to of the page cache",
        |t| t.entitled,
    );
    level(
        "tenant_protected",
        "The part of the entitlement that the kernel's reclaim is kept away from",
        |t| t.protected,
    );
    let weight = Family::<Tenant, Whole>::default();
    registry.register(
        "tenant_weight",
        "Weight among the siblings, 1 to 10000",
        weight.clone(),
    );
    let contends = Family::<Tenant, Whole>::default();
    registry.register(
        "tenant_contends",
        "1 if the tenant moved bytes or waited for them nearly all the time and was held up by I/O",
        contends.clone(),
    );
    let reclaimed = Family::<Tenant, Counter>::default();
    registry.register_with_unit(
        "tenant_reclaimed",
        "File pages that the agent has reclaimed from a tenant",
        Unit::Bytes,
        reclaimed.clone(),
    );
    let refaults = Family::<Tenant, Counter>::default();
    registry.register(
        "tenant_refaults",
        "File pages that came back after having been reclaimed by anyone, since the cgroup was made",
        refaults.clone(),
    );
    for tenant in tenants {
        weight.get_or_create(&of(tenant)).set(tenant.weight);
        contends
            .get_or_create(&of(tenant))
            .set(u64::from(tenant.contends));
        reclaimed
            .get_or_create(&of(tenant))
            .inc_by(tenant.reclaimed);
        refaults.get_or_create(&of(tenant)).inc_by(tenant.refaults);
    }
}

fn applications(tenants: &[TenantStatus], registry: &mut Registry) {
    let seen: Vec<(&TenantStatus, &AppStatus)> = tenants
        .iter()
        .filter_map(|t| Some((t, t.app.as_ref()?)))
        .collect();
    let bytes = Family::<Direction, Counter>::default();
    registry.register_with_unit(
        "tenant_application",
        "Bytes that a tenant's applications read from and wrote to regular files, cached or not",
        Unit::Bytes,
        bytes.clone(),
    );
    let operations = Family::<Direction, Counter>::default();
    registry.register(
        "tenant_application_operations",
        "Calls of a tenant's applications that read from or wrote to regular files",
        operations.clone(),
    );
    for (tenant, app) in &seen {
        let directions = [
            ("read", app.read_bytes, app.reads),
            ("write", app.write_bytes, app.writes),
        ];
        for (direction, moved, calls) in directions {
            let label = Direction {
                tenant: label(&tenant.path),
                direction,
            };
            bytes.get_or_create(&label).inc_by(moved);
            operations.get_or_create(&label).inc_by(calls);
        }
    }
    let mut count = |name: &str, unit: Option<Unit>, help: &str, value: fn(&AppStatus) -> u64| {
        let family = Family::<Tenant, Counter>::default();
        match unit {
            Some(unit) => registry.register_with_unit(name, help, unit, family.clone()),
            None => registry.register(name, help, family.clone()),
        }
        for (tenant, app) in &seen {
            family.get_or_create(&of(tenant)).inc_by(value(app));
        }
    };
    count(
        "tenant_cache_lookups",
        Some(Unit::Bytes),
        "Bytes read through the page cache",
        |a| a.cached_read_bytes,
    );
    count(
        "tenant_cache_fills",
        Some(Unit::Bytes),
        "Bytes that a device had to deliver into the page cache; 1 minus its part of the lookups is the hit \
         ratio",
        |a| a.fill_bytes,
    );
    count(
        "tenant_misses",
        None,
        "Reads and faults that found their first page absent from the page cache",
        |a| a.misses,
    );
    let mut time = |name: &str, help: &str, value: fn(&AppStatus) -> f64| {
        let family = Family::<Tenant, Seconds>::default();
        registry.register_with_unit(name, help, Unit::Seconds, family.clone());
        for (tenant, app) in &seen {
            family
                .get_or_create(&of(tenant))
                .inc_by(value(app).max(0.0));
        }
    };
    time(
        "tenant_throttled",
        "Time that block requests were held back by io.max, summed over requests",
        |a| a.throttled,
    );
    time(
        "tenant_dirty_wait",
        "Time that writers were held back until dirty pages had been written",
        |a| a.dirty_wait,
    );
}

fn latency(tenants: &[TenantStatus], registry: &mut Registry) {
    let latencies = Family::<Percentile, Float>::default();
    let timed = tenants
        .iter()
        .filter_map(|t| Some((t, t.app.as_ref()?.latency?)));
    let mut any = false;
    for (tenant, l) in timed {
        let values = [
            ("read", "50", l.read_p50),
            ("read", "99", l.read_p99),
            ("write", "50", l.write_p50),
            ("write", "99", l.write_p99),
            ("sync", "99", l.sync_p99),
        ];
        for (operation, percentile, value) in values {
            let Some(value) = value else { continue };
            any = true;
            let tenant = label(&tenant.path);
            latencies
                .get_or_create(&Percentile {
                    tenant,
                    operation,
                    percentile,
                })
                .set(value);
        }
    }
    if any {
        registry.register_with_unit(
            "tenant_latency_bound",
            "Upper bound of a percentile of how long calls took over the last ten seconds, within a factor of 2",
            Unit::Seconds,
            latencies,
        );
    }
}

fn knobs(tenants: &[TenantStatus], registry: &mut Registry) {
    let stands = Family::<KnobOf, Whole>::default();
    registry.register(
        "tenant_knob",
        "What the agent has put into a knob that is one number (bytes; of vm.dirty_background_ratio per cent)",
        stands.clone(),
    );
    for tenant in tenants {
        for knob in tenant
            .knobs
            .iter()
            .filter(|k| k.by == justitia_api::Holder::Agent)
        {
            let Ok(value) = knob.stands.parse() else {
                continue;
            };
            let label = KnobOf {
                tenant: label(&tenant.path),
                knob: label(&knob.knob),
            };
            stands.get_or_create(&label).set(value);
        }
    }
}
