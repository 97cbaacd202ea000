//! What the agent tells, gathered from everywhere in it.

use std::collections::HashMap;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use justitia_api::{
    AgentUsage, AppStatus, ExternalKnob, GivenUpKnob, KnobOwner, KnobStatus, MemoryStatus,
    PV_INFINITE, ProbeDrops, Reason, STATUS_VERSION, Status, TenantStatus,
};
use justitia_kernel::cgroup::CgroupId;
use justitia_kernel::knob::Knob;
use justitia_share::fairness_window::FairnessWindow;
use justitia_share::num::to_f64;
use justitia_share::{Fraction, NodeId};

use super::policy::policy;
use super::{subtotals, working_set};
use crate::agent::Agent;
use crate::enforce::knob_store::Unwritable;
use crate::monitor::{WINDOW, WindowStats, process_cpu, thread_cpu};
use crate::plan::{Key, Snapshot};

/// Everything, as it is now.
pub(crate) fn status(agent: &Agent, at_start: &[String], observe: bool) -> Status {
    let now = Instant::now();
    let memory = agent.snapshot.memory;
    let app_io = &agent.monitor.app_io;
    let rates: Vec<Option<WindowStats>> = agent.ids().map(|id| app_io.stats(id?, now)).collect();
    let pv = match app_io.unavailable_reason() {
        None => live(&agent.snapshot, &rates),
        Some(_) => FairnessWindow::default(),
    };
    let drops = app_io.drops();
    let store = agent.protection.store();
    Status {
        status_version: STATUS_VERSION,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        observe,
        uptime: agent.started.elapsed().as_secs_f64(),
        time: SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default()
            .as_secs_f64(),
        window: WINDOW.as_secs_f64(),
        app_io_unavailable: app_io.unavailable_reason().map(str::to_owned),
        policy: policy(),
        demand_model: agent.config.cache.demand,
        pv: finite(pv.whole),
        pv_top: finite(pv.top),
        memory: MemoryStatus {
            total: memory.total,
            free: memory.free,
            free_headroom: agent.entitlements.free_headroom,
            consumption_rate: memory.consumption_rate(),
            cache_divisible: agent.entitlements.capacity,
        },
        tenants: tenants(agent, &rates, &pv),
        external: external(agent),
        given_up: given_up(agent),
        decisions: agent.decisions.decisions(),
        limitations: at_start.iter().cloned().chain(limitations(agent)).collect(),
        probe_drops: drops
            .iter()
            .map(|drop| ProbeDrops {
                what: drop.what.to_owned(),
                count: drop.count,
            })
            .collect(),
        agent_usage: AgentUsage {
            cpu: process_cpu().as_secs_f64(),
            cpu_loop: thread_cpu().as_secs_f64(),
            resident: resident(),
            knobs: store.map_or(0, |store| u64::try_from(store.len()).unwrap_or(u64::MAX)),
            reclaimed: agent.reclaim.reclaimed(),
            errors: agent.reclaim.errors(),
            probe_read_errors: app_io.errors(),
        },
    }
}

/// The knobs that others have set.
fn external(agent: &Agent) -> Vec<ExternalKnob> {
    let store = agent.protection.store().into_iter();
    store
        .flat_map(|store| store.external())
        .map(|(id, knob, found)| ExternalKnob {
            path: agent.path(Key::Cgroup(id)),
            knob: knob.to_string(),
            value: found.to_owned(),
        })
        .collect()
}

/// The knobs that the agent does not write any more.
fn given_up(agent: &Agent) -> Vec<GivenUpKnob> {
    let store = agent.protection.store().into_iter();
    store
        .flat_map(|store| store.given_up())
        .map(|(id, knob, why)| GivenUpKnob {
            path: agent.path(Key::Cgroup(id)),
            knob: knob.to_string(),
            reason: why.to_owned(),
        })
        .collect()
}

/// Every tenant, inner nodes with the sums of what is below them.
fn tenants(agent: &Agent, rates: &[Option<WindowStats>], pv: &FairnessWindow) -> Vec<TenantStatus> {
    let mut knobs = knobs(agent);
    let root = agent.monitor.cgroups.root();
    let tree = &agent.snapshot.tenants;
    let mut ids = agent.ids();
    let mut tenants = tree.map(|node_id, tenant| {
        let id = ids.next().flatten();
        let (i, is_leaf) = (node_id.index(), tree.is_leaf(node_id));
        let node = id.and_then(|id| agent.monitor.cgroups.get(id));
        let leaf = |amount: u64| if is_leaf { amount } else { 0 };
        TenantStatus {
            path: agent.path(tenant.key),
            id: id.map_or(0, |id| id.0),
            parent: tree.parent(node_id).map(NodeId::index),
            weight: tenant.weight.get(),
            weight_source: node
                .map_or_else(Default::default, |n| agent.monitor.cgroups.weight(n).1),
            sums_weights: !is_leaf && tenant.sums_weights,
            leaf: is_leaf,
            usage: tenant.own,
            entitlement: agent.entitlements.entitled[i],
            protected: if tenant.key == Key::Unmanaged {
                // It has no `memory.low`.
                0
            } else {
                leaf(agent.entitlements.protected[i])
            },
            minimum: tenant.minimum.min(tenant.cache),
            requested_protection: tenant.requested_protection.min(tenant.cache),
            idle: tenant.idle_for.as_secs_f64(),
            growing: tenant.growing,
            exempt: tenant.exempt.map(Reason::from),
            reclaimed: agent.reclaim.reclaimed_from(tenant.key),
            unreclaimable: leaf(tenant.unreclaimable),
            other: leaf(tenant.other),
            refaults: node.map_or(0, |n| leaf(n.memory.refaults)),
            app: rates[i].as_ref().map(app),
            backlogged: pv.backlogged.get(i).copied().unwrap_or(false),
            pv: finite(pv.groups.get(i).copied().flatten()),
            working_set: leaf(agent.entitlements.demands[i].working_set),
            working_set_unknown: is_leaf
                && working_set::is_unknown(
                    tenant,
                    agent.config.cache.demand,
                    agent.features.multi_gen,
                ),
            demand: Some(agent.entitlements.demands[i].total).filter(|demand| *demand < u64::MAX),
            evidence: tenant.working_set.evidence,
            observed_for: tenant.working_set.observed_for.as_secs_f64(),
            curve: id.and_then(|id| agent.monitor.reuse.get(id)?.status()),
            knobs: knobs.remove(&id.unwrap_or(root)).unwrap_or_default(),
        }
    });
    subtotals::add_up(&mut tenants);
    tenants.values_mut().map(std::mem::take).collect()
}

/// What works less well than it could, beside what the caller knows.
fn limitations(agent: &Agent) -> Vec<String> {
    let app_io = &agent.monitor.app_io;
    let reuse = agent.monitor.reuse.refused();
    let store = agent.protection.store();
    let journal = store.and_then(|s| s.write_error());
    let read_only = store.and_then(|s| s.read_only());
    let cgroups = agent.monitor.cgroups.limitations();
    let drops = app_io.drops();
    let dropped = drops.iter().filter(|drop| drop.count > 0);
    cgroups
        .into_iter()
        .chain(app_io.limitations())
        .chain(
            reuse
                .iter()
                .map(|why| format!("What tenants use of their caches is not sampled: {why}")),
        )
        .chain(dropped.map(|drop| drop.text.clone()))
        .chain(journal.map(|why| {
            format!("Knob journal: it cannot be written, so knobs can only be restored: {why}")
        }))
        .chain(
            read_only.map(|why| {
                format!("Knobs: their mount is read-only, so they stay as they are: {why}")
            }),
        )
        .chain(agent.credits.limits())
        .chain(agent.recharge.limitations().iter().cloned())
        .collect()
}

/// PV of every group and of the whole, from what is known of the leaves.
fn live(snapshot: &Snapshot, rates: &[Option<WindowStats>]) -> FairnessWindow {
    let tree = snapshot.tenants.map(|_, tenant| tenant.weight);
    let activities: Vec<_> = rates
        .iter()
        .map(|rates| rates.as_ref().map(|r| r.activity).unwrap_or_default())
        .collect();
    FairnessWindow::of(&tree, &activities)
}

fn finite(pv: Option<f64>) -> Option<f64> {
    pv.map(|pv| pv.min(PV_INFINITE))
}

fn app(rates: &WindowStats) -> AppStatus {
    let (total, recent) = (&rates.total, &rates.recent);
    let per_second = |amount: u64| to_f64(amount) / rates.window.max(1.0);
    AppStatus {
        read_bytes: total.read.total().bytes,
        write_bytes: total.written.total().bytes,
        reads: total.read.total().operations,
        writes: total.written.total().operations,
        cache_read_bytes: total.cache_read_bytes(),
        cache_miss_bytes: total.cache_miss_bytes,
        misses: total.demand_misses,
        io_throttled: to_f64(total.throttled_ns) / 1e9,
        dirty_throttled: to_f64(total.dirty_throttle_ns) / 1e9,
        read_rate: per_second(recent.read.total().bytes),
        write_rate: per_second(recent.written.total().bytes),
        miss_rate: per_second(recent.demand_misses),
        hit_ratio: recent.hit_ratio(),
        io_stalled: rates.activity.io_stalled.map(Fraction::get),
    }
}

/// The knobs that the agent has moved, left to others or given up, by cgroup.
fn knobs(agent: &Agent) -> HashMap<CgroupId, Vec<KnobStatus>> {
    let mut knobs: HashMap<CgroupId, Vec<KnobStatus>> = HashMap::new();
    let protection = &agent.protection;
    let mut add = |id: CgroupId, knob: KnobStatus| knobs.entry(id).or_default().push(knob);
    for (id, knob, original, applied) in protection
        .store()
        .into_iter()
        .flat_map(|store| store.owned())
    {
        add(
            id,
            KnobStatus {
                knob: knob.to_string(),
                value: applied.to_owned(),
                owner: KnobOwner::Agent,
                original: Some(original.to_owned()),
                reason: match knob {
                    Knob::MemoryLow => protection.reason(id, knob),
                    _ => agent.credits.why(id, knob).map(Reason::Text),
                },
            },
        );
    }
    for (id, knob, why) in protection
        .store()
        .into_iter()
        .flat_map(|store| store.unwritable())
    {
        let (owner, value, reason) = match why {
            Unwritable::External { found } => (KnobOwner::External, found.clone(), None),
            Unwritable::GivenUp { why } => (
                KnobOwner::GivenUp,
                String::new(),
                Some(Reason::Text(why.clone())),
            ),
        };
        add(
            id,
            KnobStatus {
                knob: knob.to_string(),
                value,
                owner,
                original: None,
                reason,
            },
        );
    }
    for (id, knob, value) in protection.would_apply() {
        add(
            id,
            KnobStatus {
                knob: knob.to_string(),
                value: value.to_string(),
                owner: KnobOwner::Proposed,
                original: None,
                reason: protection.reason(id, knob),
            },
        );
    }
    knobs
}

/// This process's resident memory, bytes.
fn resident() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = statm.split(' ').nth(1).and_then(|p| p.parse::<u64>().ok());
    pages.unwrap_or(0) * justitia_kernel::PAGE_SIZE
}
