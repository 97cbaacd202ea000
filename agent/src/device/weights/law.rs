//! The control law of a disk that a scheduler divides by weight. It corrects each tenant's weight there by the I/O of its
//! applications, compared with the applications of contending siblings.
//!
//! A scheduler with weights leaves no bandwidth unused, so the law needs no capacity and no forecast: only the ratios of
//! siblings' weights matter. The law measures the effect of a weight in the scheduler: requests that pass it, queues of
//! different depth, pages that are rewritten or deleted before writeback.
//!
//! A tenant has one state, WDT's carried-over *residual*: the integral of the difference between its applications' I/O and
//! their part.

use std::collections::{HashMap, HashSet};

use justitia_share::num::{to_f64, to_u64};
use justitia_share::{Demand, NodeId, Tree};

use crate::device::disk_sampler::LOOKED_AT;

/// A tenant contends if its tasks, or requests, wait for this part of the time.
const STALLED: f64 = 0.3;
/// It then contends as long as it waits for this part of the time: the tenant with the largest part of a disk waits least.
const STILL_STALLED: f64 = 0.02;
/// io.cost divides by weight as long as all tenants use their parts. A tenant that uses less than this fraction of its part is
/// not limited by its weight. Raising its weight would only let io.cost give others more than the disk can do
/// (docs/results/device.md, "A careful reader").
const LEAVES: f64 = 0.5;
/// A tenant that has waited within this many seconds contends.
const LATELY: f64 = 2.0;
/// No weight is corrected as long as every contending tenant gets at least this fraction of its part by weight, and at most the
/// inverse of it.
const FAIR: f64 = 0.9;
/// The limit for the seconds of one interval in a correction.
const LONGEST: f64 = 1.0;
/// Seconds of contention before any weight is corrected.
const ENGAGE_AFTER: f64 = 0.5;
/// An error is corrected within about this many seconds. With dirty pages the seconds that writing them takes are added, since
/// until then the correction has no visible effect. At most [`SLOWEST`].
const CORRECTED_IN: f64 = 2.0;
const SLOWEST: f64 = 4.0;
/// An interval counts at most as one without I/O, or as one with twice the part. The excess is carried over, at most this many
/// seconds of it. A scheduler serves a light tenant in lumps of several times its part, which must count whole. So must dirty
/// pages that a writer produced in advance, since it stands still later. The excess of a long burst would be corrected for
/// longer than the burst lasted.
const CARRIED: f64 = 10.0;
/// The correction of a node that does not contend any more is forgotten within about this many seconds.
const FORGOTTEN: f64 = 20.0;
/// The largest ratio of the corrections of two contending siblings. It bounds the gain of a tenant whose use is not visible.
/// BFQ serves requests past the weights while it idles for another queue (injection), most of them of light tenants: eight file
/// servers need a factor of some 30 to divide the disk.
pub const MOST_CORRECTION: f64 = 64.0;
/// A change of a weight by less than this part is not made.
const DEADBAND: f64 = 0.08;
/// A tenant that writes less counts as if it wrote this much, bytes per second.
const LEAST_BYTES: f64 = 131_072.0;

/// An interval of the disk.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Looked {
    /// Its length, seconds.
    pub seconds: f64,
    /// The part of it in which the disk had requests, 0 to 1.
    pub busy: f64,
    /// Whether the disk is divided by weight: false while tenants use less than io.cost hands out.
    pub divided: bool,
}

/// Whether tenants contend for a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contention {
    /// They do not.
    None,
    /// For too short a time to act.
    Begins,
    /// They do, and weights are corrected.
    Engaged,
}

/// A tenant's interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Used {
    /// Its node in the tree, a leaf.
    pub node: NodeId,
    /// Bytes per second to and from the disk.
    pub bytes: f64,
    /// The written part of `bytes`.
    pub written: f64,
    /// The part of the interval in which any of its tasks waited for I/O or for room for dirty pages, 0 to 1.
    pub stalled: f64,
    /// Bytes per second that its applications read and wrote, cached or not. They are multiplied by the cost of their requests
    /// relative to large ones, if known.
    pub application: f64,
    /// Its dirty pages and those under writeback, bytes.
    pub dirty: u64,
}

/// The weight of a node that contends with siblings, and its reasons.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Corrected {
    /// The node.
    pub node: NodeId,
    /// Its weight on the disk.
    pub weight: u64,
    /// The factor of the correction.
    pub correction: f64,
    /// Its applications' recent part of the I/O of all contending siblings, 0 to 1.
    pub got: f64,
    /// The same by weight.
    pub target: f64,
    /// Its part of the disk by the corrected weights, among all tenants that contend.
    pub part: f64,
}

/// The state of a node.
#[derive(Clone, Copy, Debug)]
struct State {
    /// Seconds since it last waited.
    idle: f64,
    /// Seconds since it last used the disk.
    unused: f64,
    /// The recent I/O of its applications, averaged over about [`LATELY`], bytes per second.
    got: f64,
    /// The same for its disk transfers.
    moved: f64,
    /// The logarithm of the factor on its weight.
    correction: f64,
    /// The uncorrected debt to it, or by it if negative: seconds of its part.
    owed: f64,
    /// The last decided weight, 0 for none.
    stands: u64,
    /// Its part of the disk among all contending nodes, if it or a node above it contends with a sibling.
    part: Option<f64>,
}

/// The interval of a node, including its descendants.
#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    stalled: f64,
    uses: bool,
    application: f64,
    bytes: f64,
    written: f64,
    dirty: f64,
}

/// The law of one disk.
#[derive(Clone, Debug, Default)]
pub struct Law {
    nodes: HashMap<u64, State>,
    /// How long there has been contention, seconds.
    contended: f64,
    /// Whether the disk's controller follows weights exactly, as io.cost does.
    exact: bool,
    /// How long weights have been in force, seconds.
    in_force: f64,
}

impl Law {
    /// `exact`: whether the disk's controller follows weights exactly, as io.cost does and BFQ does not.
    #[must_use]
    pub fn new(exact: bool) -> Self {
        Self {
            exact,
            ..Self::default()
        }
    }

    /// Whether weights are corrected.
    #[must_use]
    pub fn engaged(&self) -> bool {
        self.contended >= ENGAGE_AFTER
    }

    /// Whether tenants contend.
    #[must_use]
    pub fn contention(&self) -> Contention {
        match self.contended {
            _ if self.engaged() => Contention::Engaged,
            seconds if seconds > 0.0 => Contention::Begins,
            _ => Contention::None,
        }
    }

    /// Drops the corrections: no weight could be set, and the time without them is not compensated.
    pub fn forget(&mut self) {
        self.in_force = 0.0;
        for state in self.nodes.values_mut() {
            (state.correction, state.owed) = (0.0, 0.0);
        }
    }

    /// Handles an interval; returns the weights of all nodes that contend with a sibling. The tree has the weights by which the
    /// disk is divided; `ids` names its nodes, with the same id in every interval. No weight exceeds `most`.
    pub fn step(
        &mut self,
        tree: &Tree<Demand>,
        ids: &[u64],
        looked: Looked,
        used: &[Used],
        most: u64,
    ) -> Vec<Corrected> {
        let here: HashSet<&u64> = ids.iter().collect();
        self.nodes.retain(|id, _| here.contains(id));
        let sums = sums(tree, used);
        for (id, sum) in ids.iter().zip(&sums) {
            self.nodes
                .entry(*id)
                .or_insert(State::NEW)
                .notice(sum, looked.seconds);
        }
        let groups = self.contending(tree, ids);
        self.engage(tree, ids, looked, &groups);
        let engaged = self.engaged();
        for state in self.nodes.values_mut() {
            if !engaged || !state.contends() {
                state.rest(looked.seconds);
            }
        }
        if !engaged {
            self.in_force = 0.0;
            return Vec::new();
        }
        self.in_force += looked.seconds;
        let mut corrected = Vec::new();
        for (parent, group) in &groups {
            let above = parent.and_then(|parent| self.state(ids, parent).part);
            let limited = self.limited(tree, ids, looked, group);
            self.correct(tree, ids, looked.seconds, &limited, &sums);
            let alone = group.len() < 2;
            for mut one in self.decide(tree, ids, group, most) {
                // A single contending child gets its parent's whole part.
                one.part *= above.unwrap_or(1.0);
                if let Some(state) = self.nodes.get_mut(&ids[one.node.index()]) {
                    state.part = (!alone || above.is_some()).then_some(one.part);
                }
                if !alone {
                    corrected.push(one);
                }
            }
        }
        corrected
    }

    /// The part of the disk that a node has among all contending nodes, 0 to 1. Known for each that contends with a sibling,
    /// and each that contends alone below such a node.
    #[must_use]
    pub fn part(&self, id: u64) -> Option<f64> {
        self.nodes.get(&id)?.part
    }

    /// The weights of contending siblings; their parts are relative to their parent.
    fn decide(
        &mut self,
        tree: &Tree<Demand>,
        ids: &[u64],
        group: &[NodeId],
        most: u64,
    ) -> Vec<Corrected> {
        let weights = group.iter().map(|node| self.corrected(tree, ids, *node));
        let weights: Vec<f64> = weights.collect();
        let highest = weights.iter().copied().fold(0.0, f64::max);
        let scale = (to_f64(most) / highest).min(1.0);
        let (all, got) = (weights.iter().sum::<f64>(), self.got(ids, group));
        let by_weight: f64 = group.iter().map(|node| weight(tree, *node)).sum();
        let decide = |(node, raw): (&NodeId, f64)| {
            let state = self.nodes.get_mut(&ids[node.index()])?;
            state.stand(to_u64((raw * scale).round()).clamp(1, most));
            Some(Corrected {
                node: *node,
                weight: state.stands,
                correction: state.correction.exp(),
                got: state.got / got.max(f64::MIN_POSITIVE),
                target: weight(tree, *node) / by_weight,
                part: raw / all,
            })
        };
        group.iter().zip(weights).filter_map(decide).collect()
    }

    /// Its corrected weight.
    fn corrected(&self, tree: &Tree<Demand>, ids: &[u64], node: NodeId) -> f64 {
        weight(tree, node) * self.state(ids, node).correction.exp()
    }

    fn state(&self, ids: &[u64], node: NodeId) -> State {
        let state = self.nodes.get(&ids[node.index()]);
        state.copied().unwrap_or(State::NEW)
    }

    /// The recent I/O of these nodes' applications.
    fn got(&self, ids: &[u64], group: &[NodeId]) -> f64 {
        group.iter().map(|node| self.state(ids, *node).got).sum()
    }

    /// The members of a group that their weights limit. The corrections of the others are forgotten slowly.
    fn limited(
        &mut self,
        tree: &Tree<Demand>,
        ids: &[u64],
        looked: Looked,
        group: &[NodeId],
    ) -> Vec<NodeId> {
        if !self.exact || self.in_force < LATELY {
            return group.to_vec();
        }
        let gives = |node: &NodeId| self.corrected(tree, ids, *node);
        let moved = |node: &NodeId| self.state(ids, *node).moved;
        let given: f64 = group.iter().map(gives).sum();
        let all: f64 = group.iter().map(moved).sum();
        let leaves = |node: &NodeId| moved(node) * given < LEAVES * gives(node) * all;
        let mut limited = group.to_vec();
        limited.retain(|node| looked.divided && !leaves(node));
        // Corrections are relative: one node alone has none.
        if limited.len() < 2 {
            limited.clear();
        }
        for node in group.iter().filter(|node| !limited.contains(node)) {
            if let Some(state) = self.nodes.get_mut(&ids[node.index()]) {
                state.forget(looked.seconds);
            }
        }
        limited
    }

    /// The contending siblings of every parent, from the top down.
    fn contending(&self, tree: &Tree<Demand>, ids: &[u64]) -> Vec<(Option<NodeId>, Vec<NodeId>)> {
        let contend = |parent: Option<NodeId>| {
            let children = tree.children(parent);
            let group: Vec<_> = children
                .filter(|node| self.state(ids, *node).contends())
                .collect();
            (parent, group)
        };
        tree.parents().map(contend).collect()
    }

    /// Contention begins when a tenant gets another part than by its weight. It lasts as long as one tenant contends and
    /// another uses the disk: a protected tenant waits no more, but would again without the correction.
    fn engage(
        &mut self,
        tree: &Tree<Demand>,
        ids: &[u64],
        looked: Looked,
        groups: &[(Option<NodeId>, Vec<NodeId>)],
    ) {
        let unfair = |group: &[NodeId]| {
            let all = self.got(ids, group);
            let of: f64 = group.iter().map(|node| weight(tree, *node)).sum();
            group.iter().any(|node| {
                let (got, target) = (self.state(ids, *node).got, all * weight(tree, *node) / of);
                got < FAIR * target || got * FAIR > target
            })
        };
        let begins = || {
            let mut several = groups.iter().filter(|(_, group)| group.len() > 1);
            looked.busy >= LOOKED_AT && several.any(|(_, group)| unfair(group))
        };
        let lasts = || {
            let uses = |node: &NodeId| self.state(ids, *node).uses();
            let mut of_one = groups.iter().filter(|(_, group)| !group.is_empty());
            of_one.any(|(parent, _)| tree.children(*parent).filter(uses).count() > 1)
        };
        let contended = if self.engaged() { lasts() } else { begins() };
        self.contended = if contended {
            self.contended + looked.seconds
        } else {
            0.0
        };
    }

    /// Integrates how far each member of a group is from its part of the group's sum. Only differences between members count,
    /// so the mean is subtracted.
    fn correct(
        &mut self,
        tree: &Tree<Demand>,
        ids: &[u64],
        seconds: f64,
        group: &[NodeId],
        sums: &[Sum],
    ) {
        let got = |node: &NodeId| sums[node.index()].application;
        let all: f64 = group.iter().map(got).sum();
        let of: f64 = group.iter().map(|node| weight(tree, *node)).sum();
        // Relative to the recent sum: so a second counts in proportion to the I/O in it.
        let lately = self.got(ids, group);
        if group.len() < 2 || lately <= 0.0 {
            return;
        }
        let mut mean = 0.0;
        for node in group {
            let part = weight(tree, *node) / of;
            if let Some(state) = self.nodes.get_mut(&ids[node.index()]) {
                let error = (all * part - got(node)) / (lately * part);
                state.correct(error, &sums[node.index()], seconds);
                mean += part * state.correction;
            }
        }
        let corrections = group.iter().map(|node| self.state(ids, *node).correction);
        let highest = corrections.fold(f64::NEG_INFINITY, f64::max);
        for node in group {
            if let Some(state) = self.nodes.get_mut(&ids[node.index()]) {
                let bounded = state.correction.max(highest - MOST_CORRECTION.ln());
                state.correction = bounded - mean;
            }
        }
    }
}

impl State {
    const NEW: Self = Self {
        idle: LATELY,
        unused: LATELY,
        got: 0.0,
        moved: 0.0,
        correction: 0.0,
        owed: 0.0,
        stands: 0,
        part: None,
    };

    fn contends(&self) -> bool {
        self.idle < LATELY
    }

    fn uses(&self) -> bool {
        self.unused < LATELY
    }

    fn notice(&mut self, sum: &Sum, seconds: f64) {
        let enough = if self.contends() {
            STILL_STALLED
        } else {
            STALLED
        };
        let waits = sum.stalled >= enough;
        self.idle = if waits { 0.0 } else { self.idle + seconds };
        self.unused = if sum.uses { 0.0 } else { self.unused + seconds };
        let part = 1.0 - (-seconds / LATELY).exp();
        let lately = |old: f64, new: f64| match old > 0.0 {
            true => old + (new - old) * part,
            false => new,
        };
        self.got = lately(self.got, sum.application.max(0.0));
        self.moved = lately(self.moved, sum.bytes);
    }

    /// `error`: the missing fraction of its part.
    fn correct(&mut self, error: f64, sum: &Sum, seconds: f64) {
        // Little is known of an interval in which the agent was stopped.
        let seconds = seconds.min(LONGEST);
        let owed = self.owed + error * seconds;
        let counts = owed.clamp(-seconds, seconds);
        self.owed = (owed - counts).clamp(-CARRIED, CARRIED);
        let late = sum.dirty / sum.written.max(LEAST_BYTES);
        let time = (CORRECTED_IN + late).min(SLOWEST);
        self.correction += counts / time;
    }

    /// It does not contend.
    fn rest(&mut self, seconds: f64) {
        self.forget(seconds);
        self.stands = 0;
        self.part = None;
    }

    /// Its correction is forgotten slowly.
    fn forget(&mut self, seconds: f64) {
        self.correction *= (-seconds / FORGOTTEN).exp();
        self.owed = 0.0;
    }

    fn stand(&mut self, weight: u64) {
        let moved = to_f64(self.stands.abs_diff(weight));
        if moved > DEADBAND * to_f64(self.stands) {
            self.stands = weight;
        }
    }
}

fn weight(tree: &Tree<Demand>, node: NodeId) -> f64 {
    f64::from(u32::from(tree[node].weight))
}

/// The interval of each node, including its descendants.
fn sums(tree: &Tree<Demand>, used: &[Used]) -> Vec<Sum> {
    let mut sums = vec![Sum::default(); tree.len()];
    for one in used {
        let here = one.bytes > 0.0 || one.dirty > 0;
        let stalled = if here { one.stalled } else { 0.0 };
        for node in std::iter::once(one.node).chain(tree.ancestors(one.node)) {
            let sum = &mut sums[node.index()];
            sum.stalled = sum.stalled.max(stalled);
            sum.uses |= here;
            sum.application += one.application;
            sum.bytes += one.bytes;
            sum.written += one.written;
            sum.dirty += to_f64(one.dirty);
        }
    }
    sums
}

#[cfg(test)]
mod tests;
