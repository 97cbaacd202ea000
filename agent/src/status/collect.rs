//! The status, collected from all parts of the agent.

use std::collections::HashMap;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use justitia_api::{
    AgentUsage, AppStatus, DemandModel, EstimateBasis, ExternalKnob, GivenUpKnob, IoPolicyStatus,
    KnobOwner, KnobStatus, MemoryStatus, PV_INFINITE, PolicyStatus, ProbeDrops, Reason, Rule,
    STATUS_VERSION, Status, TenantStatus,
};
use justitia_kernel::cgroup::CgroupId;
use justitia_kernel::knob::Knob;
use justitia_share::fairness_window::{FairnessWindow, MIN_IO_STALLED, SUSTAINED};
use justitia_share::num::to_f64;
use justitia_share::{Fraction, NodeId, Tree};

use crate::agent::Agent;
use crate::device::rooms;
use crate::knobs::Unwritable;
use crate::model::{Key, MIN_OBSERVATION, Snapshot, Tenant};
use crate::monitor::{WINDOW, WindowStats, process_cpu, thread_cpu};
use crate::page_cache::Node;
use crate::page_cache::protection::{DEADBAND, MIN_DEADBAND, written_by};

/// The most labels of a tenant in the status.
const MAX_LABELS: usize = 16;

/// The whole status, as it is now.
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
    let store = agent.knobs.as_ref();
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
            unmapped: memory.unmapped,
            unmapped_cap: agent.config.policy().unmapped_cap(&memory),
            slab: agent.snapshot.tenants.values().map(|t| t.slab).sum(),
            slab_cap: agent.config.policy().slab_cap(&memory),
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
            identity_errors: agent.monitor.cgroups.identity_errors(),
        },
    }
}

/// The knobs that other writers have set.
fn external(agent: &Agent) -> Vec<ExternalKnob> {
    let store = agent.knobs.as_ref().into_iter();
    store
        .flat_map(|store| store.external())
        .map(|(id, knob, found)| ExternalKnob {
            path: agent.path(Key::Cgroup(id)),
            knob: knob.to_string(),
            value: found.to_owned(),
            by: agent
                .knobs
                .as_ref()
                .and_then(|knobs| written_by(knobs, id, knob)),
        })
        .collect()
}

/// The knobs that the agent has given up.
fn given_up(agent: &Agent) -> Vec<GivenUpKnob> {
    let store = agent.knobs.as_ref().into_iter();
    store
        .flat_map(|store| store.given_up())
        .map(|(id, knob, why)| GivenUpKnob {
            path: agent.path(Key::Cgroup(id)),
            knob: knob.to_string(),
            reason: why.to_owned(),
        })
        .collect()
}

/// Every tenant; inner nodes with the sums of the tenants below them.
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
            no_processes: node.is_some_and(|node| !node.populated),
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
            idle: tenant.unused_for.as_secs_f64(),
            growing: tenant.growing,
            exempt: tenant.exempt.map(Reason::from),
            reclaimed: agent.reclaim.reclaimed_from(tenant.key),
            unreclaimable: leaf(tenant.unreclaimable),
            other: leaf(tenant.other),
            slab: tenant.slab,
            mapped: leaf(tenant.mapped.min(tenant.own.saturating_sub(tenant.slab))),
            refaults: node.map_or(0, |n| leaf(n.memory.refaults)),
            app: rates[i].as_ref().map(app),
            backlogged: pv.backlogged.get(i).copied().unwrap_or(false),
            pv: finite(pv.groups.get(i).copied().flatten()),
            working_set: leaf(agent.entitlements.demands[i].working_set),
            working_set_unknown: is_leaf
                && is_unknown(tenant, agent.config.cache.demand, agent.features.multi_gen),
            demand: Some(agent.entitlements.demands[i].total).filter(|demand| *demand < u64::MAX),
            evidence: tenant.working_set.evidence,
            observed_for: tenant.working_set.observed_for.as_secs_f64(),
            curve: id.and_then(|id| agent.monitor.reuse.get(id)?.status()),
            knobs: knobs.remove(&id.unwrap_or(root)).unwrap_or_default(),
            ..node.map_or_else(TenantStatus::default, |node| identity(agent, node))
        }
    });
    add_up(&mut tenants);
    tenants.values_mut().map(std::mem::take).collect()
}

/// The container, unit or virtual machine of a tenant, and its declared weight.
fn identity(agent: &Agent, node: &Node) -> TenantStatus {
    let identity = node.identity();
    let labels = identity.labels.iter().take(MAX_LABELS);
    TenantStatus {
        kind: identity.kind,
        name: identity.name.clone(),
        part: identity.part.clone(),
        image: identity.image.clone(),
        labels: labels.cloned().collect(),
        declared: agent.monitor.cgroups.declared(node),
        ..TenantStatus::default()
    }
}

/// The limitations of the agent's work, beside those that the caller knows.
fn limitations(agent: &Agent) -> Vec<String> {
    let app_io = &agent.monitor.app_io;
    let reuse = agent.monitor.reuse.refused();
    let store = agent.knobs.as_ref();
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
        .chain(agent.credits.limits(&agent.monitor.cgroups))
        .chain(agent.recharge.limitations().iter().cloned())
        .collect()
}

/// The PV of every group and of the whole, from those of the leaves.
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

/// The knobs that the agent has set, left to others or given up, by cgroup.
fn knobs(agent: &Agent) -> HashMap<CgroupId, Vec<KnobStatus>> {
    let mut knobs: HashMap<CgroupId, Vec<KnobStatus>> = HashMap::new();
    let (store, protection) = (&agent.knobs, &agent.protection);
    let mut add = |id: CgroupId, knob: KnobStatus| knobs.entry(id).or_default().push(knob);
    for (id, knob, original, applied) in store.iter().flat_map(|store| store.owned()) {
        add(
            id,
            KnobStatus {
                knob: knob.to_string(),
                value: applied.to_owned(),
                owner: KnobOwner::Agent,
                original: Some(original.to_owned()),
                reason: reason(agent, id, knob),
            },
        );
    }
    for (id, knob, why) in store.iter().flat_map(|store| store.unwritable()) {
        let (owner, value, reason) = match why {
            Unwritable::External { found, by, .. } => {
                let (found, applied) = (found.clone(), None);
                let by = Some(by.clone()).filter(|by| !by.is_empty());
                let reason = by.is_some().then(|| {
                    let found = found.clone();
                    Rule::ExternalWrite { found, applied, by }.into()
                });
                (KnobOwner::External, found, reason)
            }
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

/// The reason of our value in a knob.
fn reason(agent: &Agent, id: CgroupId, knob: Knob) -> Option<Reason> {
    match knob {
        Knob::MemoryLow => agent.protection.reason(id, knob),
        Knob::VfsCachePressure => agent.slab.reason(),
        Knob::IoWeight | Knob::IoBfqWeight => agent.weights.reason(id, knob),
        _ => agent.credits.why(id, knob).map(Reason::Text),
    }
}

/// This process's resident memory, bytes.
fn resident() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = statm.split(' ').nth(1).and_then(|p| p.parse::<u64>().ok());
    pages.unwrap_or(0) * justitia_kernel::PAGE_SIZE
}

/// The sums of a subtree.
#[derive(Clone, Copy, Debug, Default)]
struct Subtotal {
    usage: u64,
    protected: u64,
    working_set: u64,
    working_set_unknown: bool,
    reclaimed: u64,
    unreclaimable: u64,
    other: u64,
    slab: u64,
    mapped: u64,
    refaults: u64,
    app: Option<AppStatus>,
    /// Bytes per second of `reads` that hit the cache.
    hits: f64,
    /// Bytes per second read by tenants with a known hit ratio.
    reads: f64,
}

impl Subtotal {
    fn of(tenant: &TenantStatus) -> Self {
        let read_rate = tenant.app.map_or(0.0, |app| app.read_rate);
        let hit_ratio = tenant.app.and_then(|app| app.hit_ratio);
        Self {
            usage: tenant.usage,
            protected: tenant.protected,
            working_set: tenant.working_set,
            working_set_unknown: tenant.working_set_unknown,
            reclaimed: tenant.reclaimed,
            unreclaimable: tenant.unreclaimable,
            other: tenant.other,
            slab: tenant.slab,
            mapped: tenant.mapped,
            refaults: tenant.refaults,
            app: tenant.app,
            hits: hit_ratio.map_or(0.0, |ratio| ratio * read_rate),
            reads: hit_ratio.map_or(0.0, |_| read_rate),
        }
    }

    fn add(&mut self, more: &Self) {
        self.usage += more.usage;
        self.protected += more.protected;
        self.working_set += more.working_set;
        self.working_set_unknown |= more.working_set_unknown;
        self.reclaimed += more.reclaimed;
        self.unreclaimable += more.unreclaimable;
        self.other += more.other;
        self.slab += more.slab;
        self.mapped += more.mapped;
        self.refaults += more.refaults;
        self.hits += more.hits;
        self.reads += more.reads;
        match (&mut self.app, &more.app) {
            (Some(sum), Some(part)) => add_app(sum, part),
            (sum @ None, part) => *sum = *part,
            (Some(_), None) => {}
        }
    }
}

fn add_app(sum: &mut AppStatus, part: &AppStatus) {
    sum.read_bytes += part.read_bytes;
    sum.write_bytes += part.write_bytes;
    sum.reads += part.reads;
    sum.writes += part.writes;
    sum.cache_read_bytes += part.cache_read_bytes;
    sum.cache_miss_bytes += part.cache_miss_bytes;
    sum.misses += part.misses;
    sum.io_throttled += part.io_throttled;
    sum.dirty_throttled += part.dirty_throttled;
    sum.read_rate += part.read_rate;
    sum.write_rate += part.write_rate;
    sum.miss_rate += part.miss_rate;
}

/// Adds the descendants' values to every inner node. Its hit ratio is theirs, weighted by their reads.
pub(super) fn add_up(tenants: &mut Tree<TenantStatus>) {
    tenants.fold_up_mut(Subtotal::add, |_, tenant, below: Subtotal| {
        let mut sum = Subtotal::of(tenant);
        // The I/O of applications below counts only if the node's own is seen.
        let seen = tenant.app.is_some();
        sum.add(&below);
        if tenant.leaf {
            return sum;
        }
        tenant.usage = sum.usage;
        tenant.protected = sum.protected;
        tenant.working_set = sum.working_set;
        tenant.working_set_unknown = sum.working_set_unknown;
        tenant.reclaimed = sum.reclaimed;
        tenant.unreclaimable = sum.unreclaimable;
        tenant.other = sum.other;
        tenant.slab = sum.slab;
        tenant.mapped = sum.mapped;
        tenant.refaults = sum.refaults;
        sum.app = sum.app.filter(|_| seen).map(|app| AppStatus {
            io_stalled: tenant.app.and_then(|own| own.io_stalled),
            hit_ratio: if sum.reads > 0.0 {
                Some(sum.hits / sum.reads)
            } else {
                tenant.app.and_then(|own| own.hit_ratio)
            },
            ..app
        });
        tenant.app = sum.app;
        sum
    });
}

/// Whether a tenant's use of its cache is unknown: working sets are off (`demand = "usage"`); or its accesses are not sampled,
/// it has not been idle for long, and the kernel's lists do not show it.
pub(super) fn is_unknown(tenant: &Tenant, demand: DemandModel, multi_gen: bool) -> bool {
    let lists_tell = !multi_gen && tenant.key != Key::Unmanaged;
    let unused = !tenant.populated || tenant.working_set.observed_for >= MIN_OBSERVATION;
    let told = tenant.working_set.evidence == EstimateBasis::Accesses || lists_tell || unused;
    demand == DemandModel::Usage || !told
}

// The constants of the agent's policy, for `justitia explain`.

/// All of them.
pub(super) fn policy() -> PolicyStatus {
    PolicyStatus {
        min_observation: MIN_OBSERVATION.as_secs_f64(),
        backlogged_active: SUSTAINED.get(),
        backlogged_stalled: MIN_IO_STALLED.get(),
        low_deadband: DEADBAND,
        low_min_deadband: MIN_DEADBAND,
        io: Some(io()),
    }
}

fn io() -> IoPolicyStatus {
    IoPolicyStatus {
        min_dirty_budget: rooms::LEAST_ROOM,
        reclaim_step: rooms::STEP,
        high_deadband: rooms::DEADBAND,
        ample_free: rooms::SPARE,
        ample_budget: rooms::KEEPS,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    use justitia_kernel::cgroup::CgroupId;

    use crate::model::WorkingSet;
    use crate::page_cache::fixture;

    fn leaf(usage: u64, read_rate: f64, hit_ratio: Option<f64>) -> TenantStatus {
        TenantStatus {
            leaf: true,
            usage,
            protected: usage / 2,
            app: Some(AppStatus {
                read_rate,
                hit_ratio,
                ..AppStatus::default()
            }),
            ..TenantStatus::default()
        }
    }

    #[test]
    fn an_inner_node_has_the_sums_of_its_leaves_and_their_weighted_hit_ratio() {
        let mut tree = Tree::new();
        let inner = TenantStatus {
            usage: 5,
            app: Some(AppStatus::default()),
            ..TenantStatus::default()
        };
        let top = tree.push(None, inner.clone());
        let middle = tree.push(Some(top), inner);
        tree.push(Some(middle), leaf(10, 300.0, Some(1.0)));
        tree.push(Some(middle), leaf(20, 100.0, Some(0.0)));
        tree.push(Some(top), leaf(40, 50.0, None));
        add_up(&mut tree);
        let app = tree[top].app.unwrap();
        assert_eq!((tree[top].usage, tree[middle].usage), (80, 35));
        assert_eq!((tree[top].protected, tree[middle].protected), (35, 15));
        assert_eq!((app.read_rate, app.hit_ratio), (450.0, Some(0.75)));
    }

    fn tenant(evidence: EstimateBasis, seconds: u64) -> Tenant {
        Tenant {
            working_set: WorkingSet {
                bytes: 0,
                observed_for: Duration::from_secs(seconds),
                evidence,
            },
            ..fixture::tenant(Key::Cgroup(CgroupId(1)), 100, 0)
        }
    }

    #[test]
    fn a_working_set_that_nothing_shows_is_unknown() {
        let (lists, sampled) = (EstimateBasis::Lists, EstimateBasis::Accesses);
        for (evidence, seconds, demand, multi_gen, unknown) in [
            (sampled, 0, DemandModel::Use, true, false),
            (sampled, 0, DemandModel::Usage, true, true),
            (lists, 0, DemandModel::Use, true, true),
            (lists, 0, DemandModel::Use, false, false),
            // Idle for long: it uses what is mapped, and nothing else.
            (lists, 120, DemandModel::Use, true, false),
        ] {
            let found = is_unknown(&tenant(evidence, seconds), demand, multi_gen);
            assert_eq!(
                found, unknown,
                "{evidence:?} {seconds} {demand:?} {multi_gen}"
            );
        }
        let mut other = tenant(lists, 0);
        other.populated = false;
        assert!(!is_unknown(&other, DemandModel::Use, true));
        other = tenant(lists, 0);
        other.key = Key::Unmanaged;
        assert!(is_unknown(&other, DemandModel::Use, false));
    }
}
