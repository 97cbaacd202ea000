//! The model under the law's control, as the agent applies it: `io.max`, dirty budgets, late writeback, fresh sums.

use std::collections::HashMap;

use crate::law::{Allowance, Interval, Law, Observed};
use justitia_agent::device::{LEAST_ROOM, Writer, plan_rooms};
use justitia_kernel::cgroup::CgroupId;
use justitia_plant::{Disk, Limits, Machine, Memory, Scheduler, TenantSample};
use justitia_share::credit::{self, Flow};
use justitia_share::num::{to_f64, to_u64};
use justitia_share::{Demand, NodeId, Tree, Weight, pv};

/// `memory.high` moves every so many looks.
const ROOMS: u32 = 2;
/// A tenant with fewer dirty bytes is no buffered writer.
const DIRTY: f64 = 256e3;

pub(super) struct Controlled {
    pub(super) machine: Machine,
    pub(super) weights: Vec<Weight>,
    /// The agent looks this often, seconds.
    pub(super) period: f64,
    law: Law,
    tree: Tree<Demand>,
    nodes: Vec<NodeId>,
    standing: HashMap<u64, credit::Limits>,
    highs: HashMap<u64, u64>,
    turn: u32,
    moves: usize,
}

impl Controlled {
    /// Tenants of these weights right below the root, on a disk of so many MB/s.
    pub(super) fn new(disk: f64, memory: Memory, weights: &[u64], seed: u64) -> Self {
        let groups: Vec<_> = weights.iter().map(|weight| (*weight, vec![])).collect();
        Self::with_tree(disk, memory, &groups, seed)
    }

    /// Groups of a weight each, of tenants of these weights; one without tenants is a tenant itself.
    pub(super) fn with_tree(
        disk: f64,
        memory: Memory,
        groups: &[(u64, Vec<u64>)],
        seed: u64,
    ) -> Self {
        let weight = |w: u64| Weight::try_from(w).unwrap();
        let (mut tree, mut nodes, mut weights) = (Tree::new(), Vec::new(), Vec::new());
        for (of_group, members) in groups {
            let group = tree.push(None, Demand::unlimited(weight(*of_group)));
            if members.is_empty() {
                nodes.push(group);
                weights.push(weight(*of_group));
            }
            for member in members {
                nodes.push(tree.push(Some(group), Demand::unlimited(weight(*member))));
                weights.push(weight(*member));
            }
        }
        let disk = Disk::new(disk * 1e6, Scheduler::Fifo);
        Self {
            machine: Machine::new(disk, memory, nodes.len(), seed),
            weights,
            period: 0.25,
            law: Law::default(),
            tree,
            nodes,
            standing: HashMap::new(),
            highs: HashMap::new(),
            turn: 0,
            moves: 0,
        }
    }

    pub(super) fn engaged(&self) -> bool {
        self.law.engaged()
    }

    pub(super) fn take_moves(&mut self) -> usize {
        std::mem::take(&mut self.moves)
    }

    /// The weights are others from now on.
    pub(super) fn set_weights(&mut self, weights: &[u64]) {
        for ((node, own), weight) in self.nodes.iter().zip(&mut self.weights).zip(weights) {
            *own = Weight::try_from(*weight).unwrap();
            self.tree[*node].weight = *own;
        }
    }

    pub(super) fn run(&mut self, seconds: f64) {
        let end = self.machine.now() + seconds - 1e-6;
        while self.machine.now() < end {
            self.machine.run(self.period);
            self.act();
        }
    }

    /// What each got in a window, bytes per second.
    pub(super) fn measure(&mut self, seconds: f64) -> Vec<f64> {
        self.machine.take_done();
        self.run(seconds);
        let done = self.machine.take_done();
        done.iter().map(|bytes| bytes / seconds).collect()
    }

    /// PV and total of a window, MB/s.
    pub(super) fn window(&mut self, before: f64, seconds: f64) -> (f64, f64) {
        self.run(before);
        let got = self.measure(seconds);
        let total = got.iter().sum::<f64>();
        (pv(&self.weights, &got).unwrap(), total / 1e6)
    }

    fn act(&mut self) {
        self.turn += 1;
        let (disk, samples) = self.machine.sample();
        let interval = Interval {
            seconds: disk.seconds,
            busy: disk.busy,
            throughput: disk.throughput,
        };
        let observed = samples.iter().zip(&self.nodes).enumerate();
        let observed: Vec<Observed> = observed
            .map(|(t, (sample, node))| see(t, *node, sample))
            .collect();
        let allowances = self.law.step(&self.tree, interval, &observed);
        self.limit(&allowances);
        let engaged = self.law.engaged();
        self.machine.memory.background_ratio = if engaged { 0.19 } else { 0.1 };
        self.machine.memory.sums_every = if engaged { 0.01 } else { 2.0 };
        self.give_room(&samples, &allowances);
    }

    fn limit(&mut self, allowances: &[Allowance]) {
        for (tenant, id) in (0..self.nodes.len()).zip(0..) {
            let limits = allowances.iter().find(|a| a.id == id).map(|a| a.limits);
            let limits = limits.unwrap_or_default();
            if self.standing.insert(id, limits) != Some(limits) {
                self.moves += 1;
            }
            let limits = Limits {
                rbps: limits.rbps,
                wbps: limits.wbps,
                ..Limits::default()
            };
            self.machine.set_limits(tenant, limits);
        }
    }

    fn give_room(&mut self, samples: &[TenantSample], allowances: &[Allowance]) {
        let sample = |id: u64| &samples[usize::try_from(id).unwrap()];
        let writers = allowances.iter().filter(|a| sample(a.id).dirty > DIRTY);
        let writers: Vec<Writer> = writers
            .map(|a| Writer {
                id: CgroupId(a.id),
                part: a.part,
                file: to_u64(sample(a.id).file),
                dirty: to_u64(sample(a.id).dirty),
                other: to_u64(self.machine.memory.other),
                standing: self.highs.get(&a.id).copied(),
            })
            .collect();
        if writers.len() < 2 {
            for (id, _) in self.highs.drain() {
                self.machine.set_high(usize::try_from(id).unwrap(), None);
            }
            return;
        }
        if !self.turn.is_multiple_of(ROOMS) {
            return;
        }
        let used: f64 = samples.iter().map(|s| s.file).sum();
        let free = to_u64((self.machine.memory.dirtyable - used).max(0.0));
        for intent in plan_rooms(&writers, free) {
            assert!(intent.high >= LEAST_ROOM);
            self.highs.insert(intent.id.0, intent.high);
            let tenant = usize::try_from(intent.id.0).unwrap();
            self.machine.set_high(tenant, Some(to_f64(intent.high)));
        }
    }
}

fn see(tenant: usize, node: NodeId, sample: &TenantSample) -> Observed {
    let reads = sample.read / (sample.read + sample.written).max(1.0);
    Observed {
        id: tenant as u64,
        node,
        flow: Flow {
            rbytes: sample.read,
            wbytes: sample.written,
            rios: sample.requests * reads,
            wios: sample.requests * (1.0 - reads),
        },
        stalled: sample.stalled,
        application: sample.application,
        dirty: to_u64(sample.dirty),
        limitable: true,
    }
}
