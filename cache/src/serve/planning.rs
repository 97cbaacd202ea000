//! Weights of pools that follow from targets, in VMs where that is asked for: what is measured goes to the planner, its
//! weights to the cache.

use super::vms::{Vm, VmRegistry};
use crate::cache::{Cache, PoolStats, VmStats};
use crate::config::{PoolSpec, StoreKind};
use crate::ids::PoolId;
use crate::planner::{PERIOD, Plan, PlannedPool, Planner, PoolState, PoolView, Target};
use crate::port::NamedPools;
use justitia_api::escape::plain;
use justitia_share::Weight;
use parking_lot::Mutex;
use serde::Serialize;
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

const STORES: [StoreKind; 2] = [StoreKind::Memory, StoreKind::Ssd];

/// What is planned for the pools of a VM in a store.
#[derive(Clone, Debug, Serialize)]
pub struct PlannedStore {
    /// The VM.
    pub vm: String,
    /// The store.
    pub store: StoreKind,
    /// Hits a second to expect of the pools without a target: with the sizes of now, and in the end.
    pub expected_hits: [f64; 2],
    /// Its pools there.
    pub pools: Vec<NamedPlan>,
}

/// A pool, as it is planned for.
#[derive(Clone, Debug, Serialize)]
pub struct NamedPlan {
    /// Its name.
    pub name: String,
    /// What it is to reach.
    pub target: Option<Target>,
    /// How.
    #[serde(flatten)]
    pub plan: PlannedPool,
}

/// The planners of VMs, by name and store.
#[derive(Default)]
pub(super) struct Planning {
    planners: BTreeMap<String, [Planner; 2]>,
    plans: Vec<PlannedStore>,
}

impl Planning {
    /// What was planned last.
    pub(super) fn plans(&self) -> Vec<PlannedStore> {
        self.plans.clone()
    }

    /// Plans for the next period, and sets the weights that change.
    pub(super) fn step(&mut self, cache: &Cache, vms: &Mutex<VmRegistry>) {
        let vms = vms.lock();
        let planned = || vms.iter().filter(|(_, vm)| vm.plans);
        self.planners
            .retain(|name, _| planned().any(|(vm, _)| vm == name));
        self.plans.clear();
        for (name, vm) in planned() {
            let planners = self.planners.entry(name.to_owned()).or_default();
            plan_vm(cache, name, vm, planners, &mut self.plans);
        }
    }
}

/// Nobody else changes weights of this VM meanwhile: all who do lock its pools.
fn plan_vm(
    cache: &Cache,
    name: &str,
    vm: &Vm,
    planners: &mut [Planner; 2],
    plans: &mut Vec<PlannedStore>,
) {
    let pools = vm.pools.lock();
    let Some(stats) = cache.stats_of(vm.id) else {
        return;
    };
    let mut specs: BTreeMap<PoolId, PoolSpec> = BTreeMap::new();
    for (store, planner) in STORES.into_iter().zip(planners) {
        let views = views(&stats, &pools, store);
        let (views, known): (Vec<_>, Vec<_>) = views.into_iter().unzip();
        if views.len() < 2 {
            continue;
        }
        let part = match store {
            StoreKind::Memory => stats.memory_entitlement_bytes,
            StoreKind::Ssd => stats.ssd_entitlement_bytes,
        };
        let plan = planner.step(part, &views);
        for (pool, view) in plan.pools.iter().zip(&views) {
            let spec = stats.pools.iter().find(|stats| stats.id == pool.id);
            let (Some(spec), Ok(weight)) = (spec.and_then(spec_of), Weight::try_from(pool.weight))
            else {
                continue;
            };
            if pool.weight != view.weight {
                let spec = specs.entry(pool.id).or_insert(spec);
                *spec = spec.with(store, weight);
            }
        }
        plans.push(planned_store(name, store, plan, &known));
    }
    if !specs.is_empty()
        && let Err(error) = cache.set_pools(&specs)
    {
        tracing::warn!("cannot set the weights that are planned for VM {name}: {error}");
    }
}

/// The pools that use a store, with their names and targets.
fn views(
    stats: &VmStats,
    pools: &NamedPools,
    store: StoreKind,
) -> Vec<(PoolView, (String, Option<Target>))> {
    let view = |of: &PoolStats| {
        let named = pools.by_id(of.id)?;
        let (weight, holds, elsewhere) = match store {
            StoreKind::Memory => (of.memory_weight, of.memory_bytes, of.ssd_bytes),
            StoreKind::Ssd => (of.ssd_weight, of.ssd_bytes, of.memory_bytes),
        };
        let counts = of.counts;
        let view = PoolView {
            id: of.id,
            declared: named.spec.weight(store)?.get(),
            weight: Some(weight).filter(|weight| *weight > 0)?,
            holds,
            gets: counts.gets,
            hits: counts.memory_hits + counts.ssd_hits,
            reads: counts.disk_reads,
            read_us: counts.disk_wait_us,
            curve: of.curve.as_ref().map(|curve| curve.beyond(elsewhere)),
            // One planner goes after a pool's target: that of the store of its new blocks.
            target: named.target.filter(|_| named.spec.first_store() == store),
            pinned: named.pinned,
        };
        Some((view, (named.name.clone(), named.target)))
    };
    stats.pools.iter().filter_map(view).collect()
}

/// The weights that a pool has now.
fn spec_of(of: &PoolStats) -> Option<PoolSpec> {
    let weight = |weight| Weight::try_from(weight).ok();
    PoolSpec::new(weight(of.memory_weight), weight(of.ssd_weight))
}

/// What the status says of a plan.
fn planned_store(
    vm: &str,
    store: StoreKind,
    plan: Plan,
    known: &[(String, Option<Target>)],
) -> PlannedStore {
    let is_new = plan.is_new;
    let named = plan.pools.into_iter().zip(known);
    let planned = PlannedStore {
        vm: vm.to_owned(),
        store,
        expected_hits: plan.expected_hits,
        pools: named
            .map(|(plan, (name, target))| NamedPlan {
                name: name.clone(),
                target: *target,
                plan,
            })
            .collect(),
    };
    if is_new {
        let [now, then] = planned.expected_hits;
        let pools: Vec<_> = planned.pools.iter().map(why).collect();
        tracing::info!(
            vm = plain(vm),
            %store,
            "pools are to have other sizes: {}; hits of those without a target {now:.0}/s now, {then:.0}/s then",
            pools.join("; ")
        );
    }
    planned
}

/// What is planned for a pool, and why, in words.
fn why(of: &NamedPlan) -> String {
    let plan = &of.plan;
    let mib = |bytes: u64| format!("{} MiB", bytes >> 20);
    let target = of.target.map(|target| target.to_string());
    let target = target.unwrap_or_default();
    let why = match plan.state {
        PoolState::SetByHand => "keeps the weight that was set by hand".to_owned(),
        PoolState::NoCurve => "has no curve yet".to_owned(),
        PoolState::MostHits => "by hits".to_owned(),
        PoolState::Target => format!("needs {} for {target}", mib(plan.needs_bytes.unwrap_or(0))),
        PoolState::OutOfReach => format!("by hits, as {target} is out of reach"),
    };
    format!("{} {}, {why}", plain(&of.name), mib(plan.goal_bytes))
}

/// The thread that plans.
pub(super) struct PlanningThread {
    ends: Arc<AtomicBool>,
    thread: std::thread::JoinHandle<()>,
}

impl PlanningThread {
    /// Calls `plan` once a period.
    pub(super) fn start(plan: impl Fn() + Send + 'static) -> io::Result<Self> {
        let ends = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&ends);
        let turns = move || {
            let mut next = std::time::Instant::now() + PERIOD;
            while !flag.load(Ordering::SeqCst) {
                let now = std::time::Instant::now();
                if now < next {
                    std::thread::park_timeout(next - now);
                    continue;
                }
                plan();
                next = now + PERIOD;
            }
        };
        let builder = std::thread::Builder::new().name("justitia-plan".into());
        let thread = builder.spawn(turns)?;
        Ok(Self { ends, thread })
    }

    /// Ends it, and waits.
    pub(super) fn stop(self) {
        self.ends.store(true, Ordering::SeqCst);
        self.thread.thread().unpark();
        let _ = self.thread.join();
    }
}
