//! The model with BFQ or io.cost, its weights corrected as the agent corrects them, with or without dirty budgets.

use std::collections::HashMap;

use justitia_agent::device::weights::{Controller, Law, Looked, Used};
use justitia_agent::device::{Costs, Interval, Prices, Rate, Writer, plan_rooms};
use justitia_kernel::cgroup::CgroupId;
use justitia_plant::{Disk, DiskSample, Machine, Memory, Scheduler, TenantSample, Work};
use justitia_share::num::{to_f64, to_u64};
use justitia_share::{Demand, NodeId, Tree, Weight, pv};

/// `memory.high` moves once in this many looks.
const ROOMS: u32 = 2;
/// A tenant with fewer dirty bytes is no buffered writer.
const DIRTY: f64 = 256e3;

/// A disk of `speed` MB/s that BFQ schedules, with the leak that guests of four direct writers have shown; see
/// [`Scheduler::Bfq`].
pub(super) fn bfq(speed: f64) -> Disk {
    Disk::new(speed * 1e6, Scheduler::Bfq { leak: 0.125 })
}

/// A disk of `speed` MB/s with io.cost, whose model is the part `model` of that.
pub(super) fn io_cost(speed: f64, model: f64) -> Disk {
    let rate = model * speed * 1e6;
    Disk::new(
        speed * 1e6,
        Scheduler::IoCost {
            bytes: rate,
            requests: f64::INFINITY,
        },
    )
}

/// What acts on the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd)]
pub(super) enum Acts {
    /// The operator's weights stand.
    Nothing,
    /// Weights are corrected.
    Weights,
    /// And writers have dirty budgets.
    WeightsAndRooms,
    /// And io.cost is on while tenants contend, at the rate that follows the disk.
    Capacity,
}

pub(super) struct Controlled {
    pub(super) machine: Machine,
    pub(super) weights: Vec<Weight>,
    /// The agent looks this often, seconds.
    pub(super) period: f64,
    acts: Acts,
    /// The largest weight.
    most: u64,
    law: Law,
    io_cost: Rate,
    pub(super) costs: Costs,
    in_flight: f64,
    /// What io.cost hands out; `None` while it is off.
    pub(super) rate: Option<Prices>,
    tree: Tree<Demand>,
    ids: Vec<u64>,
    leaves: Vec<NodeId>,
    groups: Vec<(u64, Vec<u64>)>,
    highs: HashMap<u64, u64>,
    turn: u32,
    pub(super) standing: HashMap<NodeId, u64>,
    pub(super) moves: usize,
    /// How often the rate of io.cost has moved.
    pub(super) rates: u64,
}

impl Controlled {
    /// Tenants of these weights right below the root.
    pub(super) fn new(disk: Disk, memory: Memory, weights: &[u64], seed: u64, acts: Acts) -> Self {
        Self::with_tree(disk, memory, &[(100, weights.to_vec())], seed, acts)
    }

    /// Groups of a weight each, of tenants of these weights.
    pub(super) fn with_tree(
        disk: Disk,
        memory: Memory,
        groups: &[(u64, Vec<u64>)],
        seed: u64,
        acts: Acts,
    ) -> Self {
        let weight = |w: u64| Weight::try_from(w).unwrap();
        let (mut tree, mut leaves, mut weights, mut of) =
            (Tree::new(), Vec::new(), Vec::new(), Vec::new());
        for (index, (of_group, members)) in groups.iter().enumerate() {
            let group = tree.push(None, Demand::unlimited(weight(*of_group)));
            for member in members {
                leaves.push(tree.push(Some(group), Demand::unlimited(weight(*member))));
                weights.push(weight(*member));
                of.push(index);
            }
        }
        let mut machine = Machine::new(disk, memory, leaves.len(), seed);
        let controller = match disk.scheduler {
            Scheduler::IoCost { .. } => Controller::IoCost,
            Scheduler::Bfq { .. } | Scheduler::Fifo => Controller::Bfq,
        };
        let group_weights: Vec<f64> = groups.iter().map(|(w, _)| to_f64(*w)).collect();
        machine.set_groups(&group_weights, &of);
        let mut made = Self {
            machine,
            weights,
            period: 0.25,
            acts,
            most: controller.most(),
            law: Law::new(controller.is_exact()),
            io_cost: Rate::default(),
            costs: Costs::default(),
            in_flight: 0.0,
            rate: None,
            ids: (0..tree.len() as u64).collect(),
            tree,
            leaves,
            groups: groups.to_vec(),
            highs: HashMap::new(),
            turn: 0,
            standing: HashMap::new(),
            moves: 0,
            rates: 0,
        };
        made.apply(HashMap::new());
        made
    }

    pub(super) fn engaged(&self) -> bool {
        self.law.engaged()
    }

    /// The weights are others from now on.
    pub(super) fn set_weights(&mut self, weights: &[u64]) {
        for ((node, own), weight) in self.leaves.iter().zip(&mut self.weights).zip(weights) {
            *own = Weight::try_from(*weight).unwrap();
            self.tree[*node].weight = *own;
        }
        self.apply(self.standing.clone());
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
        if self.acts == Acts::Nothing {
            return;
        }
        let interval = self.interval(&disk);
        let looked = Looked {
            seconds: interval.seconds,
            busy: interval.occupied(),
            divided: self.io_cost.is_used(),
        };
        let used: Vec<Used> = samples
            .iter()
            .zip(&self.leaves)
            .map(|(sample, node)| used(*node, sample, &self.costs))
            .collect();
        let corrected = self
            .law
            .step(&self.tree, &self.ids, looked, &used, self.most);
        self.apply(corrected.iter().map(|c| (c.node, c.weight)).collect());
        let ours = self.acts == Acts::Capacity;
        self.costs.step(self.law.engaged(), &interval, ours);
        if self.acts == Acts::Capacity {
            self.follow_capacity(&interval);
        }
        if self.acts >= Acts::WeightsAndRooms {
            let engaged = self.law.engaged();
            self.machine.memory.background_ratio = if engaged { 0.19 } else { 0.1 };
            self.machine.memory.sums_every = if engaged { 0.03 } else { 2.0 };
            let part = |node: &NodeId| self.law.part(self.ids[node.index()]);
            let parts: Vec<_> = self.leaves.iter().map(part).collect();
            self.give_room(&samples, &parts);
        }
    }

    fn interval(&mut self, disk: &DiskSample) -> Interval {
        let in_flight = to_f64(disk.in_flight);
        Interval {
            seconds: disk.seconds,
            busy: disk.busy,
            used: Some(disk.used),
            under_way: disk.under_way,
            queued: in_flight - std::mem::replace(&mut self.in_flight, in_flight),
            bytes: disk.throughput,
            requests: to_f64(disk.completed) / disk.seconds,
        }
    }

    fn follow_capacity(&mut self, interval: &Interval) {
        self.io_cost
            .step(self.law.contention(), interval, &self.costs);
        let rate = self.io_cost.handed_out();
        self.rates += u64::from(rate != self.rate);
        self.rate = rate;
        let rate = rate.map_or((f64::INFINITY, f64::INFINITY), |r| (r.bytes, r.requests));
        if self.rate.is_none() {
            self.law.forget();
        }
        self.machine.set_rate(rate.0, rate.1);
    }

    /// The weights of devices that stand; a tenant without one has its default.
    fn apply(&mut self, standing: HashMap<NodeId, u64>) {
        let ids: Vec<NodeId> = self.tree.ids().collect();
        for node in ids {
            if standing.get(&node) != self.standing.get(&node) {
                self.moves += 1;
            }
        }
        self.standing = standing;
        for (tenant, node) in self.leaves.iter().enumerate() {
            let own = u64::from(u32::from(self.tree[*node].weight));
            let weight = self.standing.get(node).copied().unwrap_or(own);
            self.machine.set_weight(tenant, to_f64(weight));
        }
        let tops: Vec<NodeId> = self.tree.children(None).collect();
        for (group, node) in tops.into_iter().enumerate() {
            let weight = self.standing.get(&node).copied();
            let weight = weight.unwrap_or(self.groups[group].0);
            self.machine.set_group_weight(group, to_f64(weight));
        }
    }

    fn give_room(&mut self, samples: &[TenantSample], parts: &[Option<f64>]) {
        let writers = samples.iter().zip(parts).enumerate();
        let writers: Vec<Writer> = writers
            .filter(|(_, (sample, _))| sample.dirty > DIRTY)
            .filter_map(|(tenant, (sample, part))| {
                let id = tenant as u64;
                Some(Writer {
                    id: CgroupId(id),
                    part: (*part)?,
                    file: to_u64(sample.file),
                    dirty: to_u64(sample.dirty),
                    other: to_u64(self.machine.memory.other),
                    standing: self.highs.get(&id).copied(),
                })
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
            self.highs.insert(intent.id.0, intent.high);
            let tenant = usize::try_from(intent.id.0).unwrap();
            self.machine.set_high(tenant, Some(to_f64(intent.high)));
        }
    }
}

fn used(node: NodeId, sample: &TenantSample, costs: &Costs) -> Used {
    let bytes = sample.read + sample.written;
    let times = costs.times(bytes, sample.requests);
    Used {
        node,
        bytes: bytes * times,
        written: sample.written,
        stalled: sample.stalled,
        application: sample.application * times,
        dirty: to_u64(sample.dirty),
    }
}

/// A machine whose tenants all do this.
pub(super) fn all(mut machine: Controlled, work: Work) -> Controlled {
    machine.machine.set_all(work);
    machine
}
