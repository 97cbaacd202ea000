//! The control law of a disk that a scheduler divides by weight: each tenant's weight there, corrected by what its applications
//! got, beside the applications of its siblings that contend.
//!
//! A scheduler that goes by weights leaves nothing unused, so the law needs no capacity and no forecast: of the
//! weights only the ratios among siblings matter. What it finds by measuring is what the scheduler makes of a weight: requests
//! that pass it, queues of different depth, pages that are written again or deleted before writeback.
//!
//! The *residual* that WDT carries over is the one number of a tenant: the integral of how far its applications are from their
//! part.

use std::collections::{HashMap, HashSet};

use justitia_share::num::{to_f64, to_u64};
use justitia_share::{Demand, NodeId, Tree};

use crate::device::disk_sampler::LOOKED_AT;

/// A tenant whose tasks, or requests, wait for this part of the time contends.
const STALLED: f64 = 0.3;
/// It contends then as long as it waits for this part of the time: who has the largest part of a disk waits least.
const STILL_STALLED: f64 = 0.02;
/// io.cost divides by weight as long as everybody uses what it gives. Who uses less than this part of it is not limited by its weight: to correct
/// it up would only have io.cost give others more than the disk can do (docs/results/device.md, "A careful reader").
const LEAVES: f64 = 0.5;
/// A tenant that has waited in the last so many seconds contends.
const LATELY: f64 = 2.0;
/// No weight is corrected as long as every tenant that contends gets this part of what its weight gives it, and none more than the
/// inverse of it.
const FAIR: f64 = 0.9;
/// No interval counts for more seconds than this in a correction.
const LONGEST: f64 = 1.0;
/// Contention lasts so many seconds before any weight is corrected.
const ENGAGE_AFTER: f64 = 0.5;
/// An error is corrected within about so many seconds; one of a tenant with dirty pages in so many more as it has seconds of
/// writing in them, since until then nothing shows. At most [`SLOWEST`].
const CORRECTED_IN: f64 = 2.0;
const SLOWEST: f64 = 4.0;
/// A second of having nothing counts, and one of having twice the part; what is beyond is carried over, at most so many seconds
/// of it. A scheduler serves a light tenant in lumps of several times its part, which are to count whole; so is what a writer got
/// in advance, as dirty pages, behind which it stands still later. What a long burst got beyond would be corrected for longer
/// than it lasted.
const CARRIED: f64 = 10.0;
/// What was learnt of a node that does not contend any more is forgotten within about so many seconds.
const FORGOTTEN: f64 = 20.0;
/// The corrections of two siblings that contend are at most this factor apart: so much a tenant gains at most whose use
/// does not show. BFQ serves requests past the weights while it idles for another queue (injection), most of them of light
/// tenants: that eight file servers divide the disk needs a factor of some 30.
pub const MOST_CORRECTION: f64 = 64.0;
/// A weight that would move by less than this part stays.
const DEADBAND: f64 = 0.08;
/// A tenant that writes less counts as if it wrote so much, bytes per second.
const LEAST_BYTES: f64 = 131_072.0;

/// An interval, as the disk saw it.
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
    /// Since too short a time to act.
    Begins,
    /// They do, and weights are corrected.
    Engaged,
}

/// A tenant's interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Used {
    /// Its node in the tree, a leaf.
    pub node: NodeId,
    /// What it transferred to and from the disk, bytes per second.
    pub bytes: f64,
    /// What of that was written.
    pub written: f64,
    /// The part of the interval in which any of its tasks waited for I/O or for room for dirty pages, 0 to 1.
    pub stalled: f64,
    /// What its applications read and wrote, bytes per second, cached or not, times what their requests cost more than large ones, where that
    /// is known.
    pub application: f64,
    /// Its dirty pages and those under writeback, bytes.
    pub dirty: u64,
}

/// The weight of a node that contends with siblings, and why.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Corrected {
    /// Which node.
    pub node: NodeId,
    /// Its weight on the disk.
    pub weight: u64,
    /// The factor by which what its applications got has corrected it.
    pub correction: f64,
    /// What its applications got lately, of what those of all siblings that contend got, 0 to 1.
    pub got: f64,
    /// The same by weight.
    pub target: f64,
    /// Its part of the disk by the corrected weights, among all tenants that contend.
    pub part: f64,
}

/// What is known of a node.
#[derive(Clone, Copy, Debug)]
struct State {
    /// Seconds since it last waited.
    idle: f64,
    /// Seconds since it last used the disk.
    unused: f64,
    /// What its applications got, on the average over about [`LATELY`], bytes per second.
    got: f64,
    /// The same of what the disk transferred for it.
    moved: f64,
    /// The logarithm of the factor on its weight.
    correction: f64,
    /// What it is owed, or owes if negative, and has not been corrected for: seconds of its part.
    owed: f64,
    /// The weight that was decided last, 0 for none.
    stands: u64,
    /// Its part of the disk among all that contend, if it or a node above it contends with a sibling.
    part: Option<f64>,
}

/// What a node did in an interval, with all that is below it.
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
    /// For how long there has been contention, seconds.
    contended: f64,
    /// Whether what divides the disk goes by weights exactly, as io.cost does.
    exact: bool,
    /// For how long weights have been in force, seconds.
    in_force: f64,
}

impl Law {
    /// `exact`: whether what divides the disk goes by weights exactly, as io.cost does and BFQ does not.
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

    /// No weight could be set: what was not corrected meanwhile is not made up for.
    pub fn forget(&mut self) {
        self.in_force = 0.0;
        for state in self.nodes.values_mut() {
            (state.correction, state.owed) = (0.0, 0.0);
        }
    }

    /// Takes in an interval; returns the weights of all nodes that contend with a sibling. The tree has the weights by which
    /// the disk is divided; `ids` names its nodes, the same ones the same in every interval. No weight exceeds `most`.
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
                // One alone has all that its parent has.
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

    /// The part of the disk that a node has among all that contend, 0 to 1: of each that contends with a sibling, and of each that contends
    /// alone below such a one.
    #[must_use]
    pub fn part(&self, id: u64) -> Option<f64> {
        self.nodes.get(&id)?.part
    }

    /// The weights of siblings that contend; their parts are of what their parent has.
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

    /// Its weight, times the correction of it.
    fn corrected(&self, tree: &Tree<Demand>, ids: &[u64], node: NodeId) -> f64 {
        weight(tree, node) * self.state(ids, node).correction.exp()
    }

    fn state(&self, ids: &[u64], node: NodeId) -> State {
        let state = self.nodes.get(&ids[node.index()]);
        state.copied().unwrap_or(State::NEW)
    }

    /// What the applications of these got lately.
    fn got(&self, ids: &[u64], group: &[NodeId]) -> f64 {
        group.iter().map(|node| self.state(ids, *node).got).sum()
    }

    /// Those of a group whose weight limits them. What was learnt of the others is forgotten slowly.
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
        // One is corrected beside another.
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

    /// The siblings that contend, of every parent, from the top down.
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

    /// Begins when a tenant got another part than its weight gives it, and lasts for as long as one contends and another uses
    /// the disk: who is protected waits no more, and would again without it.
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

    /// Integrates how far each of a group is from its part of what all of them got. Only what one has beside another counts,
    /// so the mean is taken off.
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
        // Of what all got lately: a second in which all stand still says as little as they got in it.
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

    /// `error`: what it lacked, of its part.
    fn correct(&mut self, error: f64, sum: &Sum, seconds: f64) {
        // Of an interval in which the agent was stopped little is known.
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

    /// What was learnt of it is forgotten slowly.
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

/// What each node did, with all that is below it.
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
