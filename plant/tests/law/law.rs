//! The control law: what each tenant may have of a contended disk, from what everybody got of it lately.
//!
//! It is WDT ("Weight-based Dynamic Throttling", slides "Overview of WDT Scheme") with bytes as credits. *TotalCredit* is the
//! disk's capacity, found by whether the disk has pauses. The *budget distributor* is max-min by weight, down the tree. The
//! *predictor* says what a tenant that does not wait will use: a little more than it does. The *residual* that is carried over
//! is one number for each tenant: the integral of how far its applications are from their part. It corrects the weight, so
//! that what page cache, rewrites, a journal or long queues make of a limit is found by measuring it.

use std::collections::HashMap;

use justitia_share::credit::limit::LEAST_BYTES;
use justitia_share::credit::{Flow, Limits};
use justitia_share::num::{to_f64, to_u64};
use justitia_share::{Demand, NodeId, Tree};

/// A tenant whose tasks wait for this part of the time waits.
const STALLED: f64 = 0.3;
/// So does one that uses this part of its limit, or of its share of a busy disk: PSI does not see who waits for asynchronous I/O.
const USED_UP: f64 = 0.8;
/// Who has waited in the last so many seconds contends.
const LATELY: f64 = 2.0;
/// From this part of the time on a disk is busy: what it does is what it can do.
const BUSY: f64 = 0.95;
/// A disk that is busy for less than this part of the time has much to give.
const IDLE: f64 = 0.7;
/// Nobody is limited as long as everybody who contends gets this part of what its weight gives it, and nobody the inverse of it.
const FAIR: f64 = 0.8;
/// Contention lasts so many seconds before anybody is limited.
const ENGAGE_AFTER: f64 = 0.5;
/// Limits add up to so much more than what the disk was seen to do. Without it a disk that does more for more requests would
/// never be asked to.
const PROBE: f64 = 0.03;
/// The capacity follows what a busy disk does within about so many seconds.
const CAPACITY_FOLLOWS: f64 = 0.5;
/// While the disk has pauses, its capacity grows towards what it could do in them, at most so many times what it does.
const MOST_GROWTH: f64 = 4.0;
/// Who does not wait is expected to use so much of what it uses now.
const PREDICTED: f64 = 1.25;
/// An error is corrected within about so many seconds; one of a tenant with dirty pages in so many more as it has seconds of
/// writing in them, since until then nothing shows. At most [`SLOWEST`].
const CORRECTED_IN: f64 = 3.0;
const SLOWEST: f64 = 20.0;
/// A weight is corrected by at most this factor, up or down.
pub(crate) const MOST_CORRECTION: f64 = 4.0;
/// A direction gets at least this part of the limit, and so much above its recent part: no two intervals have the same mixture.
const LEAST_DIRECTION: f64 = 0.1;
/// A limit that would move by less than this part stays.
const DEADBAND: f64 = 0.05;

/// An interval, as the disk saw it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Interval {
    /// Its length, seconds.
    pub(crate) seconds: f64,
    /// The part of it in which the disk had requests, 0 to 1.
    pub(crate) busy: f64,
    /// What it read and wrote, bytes per second.
    pub(crate) throughput: f64,
}

/// A tenant's interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Observed {
    /// The same tenant has the same number in every interval.
    pub(crate) id: u64,
    /// Its node in the tree.
    pub(crate) node: NodeId,
    /// What it transferred to and from the disk, per second.
    pub(crate) flow: Flow,
    /// The part of the interval in which any of its tasks waited for I/O or for room for dirty pages, 0 to 1.
    pub(crate) stalled: f64,
    /// What its applications read and wrote, bytes per second, cached or not.
    pub(crate) application: f64,
    /// Its dirty pages and those under writeback, bytes.
    pub(crate) dirty: u64,
    /// Whether it can be limited.
    pub(crate) limitable: bool,
}

/// What a tenant that contends may have in the next interval, and why.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Allowance {
    /// Who.
    pub(crate) id: u64,
    /// What it may have, as a part of the disk's capacity.
    pub(crate) part: f64,
    /// What its weight alone gives it.
    pub(crate) share: f64,
    /// The factor by which its weight was corrected for what its applications get.
    pub(crate) correction: f64,
    /// What the disk is taken to do, bytes per second.
    pub(crate) capacity: f64,
    /// Its limits.
    pub(crate) limits: Limits,
}

/// What is known of a tenant.
#[derive(Clone, Copy, Debug)]
struct State {
    /// Seconds since it last waited.
    idle: f64,
    /// What its applications got, on the average over about [`LATELY`], bytes per second.
    got: f64,
    /// The logarithm of the factor on its weight.
    correction: f64,
    /// The part of its bytes that is read, on the average.
    reads: f64,
    /// Its limits.
    limits: Limits,
}

/// The law of one disk.
#[derive(Clone, Debug, Default)]
pub(crate) struct Law {
    tenants: HashMap<u64, State>,
    /// What the disk can do, bytes per second.
    capacity: f64,
    /// For how long there has been contention, seconds.
    contended: f64,
}

impl Law {
    /// Whether tenants are limited.
    #[must_use]
    pub(crate) fn engaged(&self) -> bool {
        self.contended >= ENGAGE_AFTER
    }

    /// Takes in an interval; returns what each tenant that contends may have in the next. The tree has the weights.
    pub(crate) fn step(
        &mut self,
        tree: &Tree<Demand>,
        interval: Interval,
        observed: &[Observed],
    ) -> Vec<Allowance> {
        self.tenants
            .retain(|id, _| observed.iter().any(|o| o.id == *id));
        let shares = shares(tree, observed, |one| one.flow.is_some());
        for (one, share) in observed.iter().zip(shares) {
            let state = self.tenants.entry(one.id).or_insert(State {
                idle: LATELY,
                got: 0.0,
                correction: 0.0,
                reads: 0.5,
                limits: Limits::default(),
            });
            let takes = one.flow.bytes() >= USED_UP * share * interval.throughput;
            let takes = takes && one.flow.is_some() && interval.busy >= BUSY;
            state.notice(one, takes, interval.seconds);
        }
        let targets = self.targets(tree, observed);
        if !self.contended(interval, observed, &targets) {
            self.tenants.values_mut().for_each(State::forget_limits);
            return Vec::new();
        }
        self.find_capacity(tree, interval, observed);
        self.correct(interval.seconds, observed, &targets);
        self.allow(tree, observed)
    }

    fn contends(&self, one: &Observed) -> bool {
        self.tenants[&one.id].idle < LATELY
    }

    /// What the applications of each should get of what all get.
    fn targets(&self, tree: &Tree<Demand>, observed: &[Observed]) -> Vec<f64> {
        let got = |one: &Observed| self.tenants[&one.id].got;
        let all: f64 = observed.iter().map(got).sum();
        let demand = |one: &Observed| if self.contends(one) { all } else { got(one) };
        divide(tree, &weights(tree), observed, demand, all)
    }

    /// Whether the disk is divided: from when somebody got another part than its weight gives it, for as long as several contend.
    fn contended(&mut self, interval: Interval, observed: &[Observed], targets: &[f64]) -> bool {
        let contending = observed.iter().zip(targets);
        let contending = contending.filter(|(one, _)| self.contends(one));
        let several = contending.clone().count() > 1;
        let unfair = |(one, target): (&Observed, &f64)| {
            let got = self.tenants[&one.id].got;
            got < FAIR * target || got * FAIR > *target
        };
        let begins = interval.busy >= BUSY && contending.clone().any(unfair);
        let contended = several && (self.engaged() || begins);
        self.contended = if contended {
            self.contended + interval.seconds
        } else {
            0.0
        };
        self.engaged()
    }

    /// The TotalCredit updater ("In order to remove storage idle time, TotalCredit is adjusted", slides "TotalCredit Updater").
    ///
    /// Pauses count by the weight of those whom their limits hold back: what the others wait for no limit gives them. Of long
    /// pauses whoever is held back gets what he can use, and all may wait for him (a journal's commit waits for its data).
    fn find_capacity(&mut self, tree: &Tree<Demand>, interval: Interval, observed: &[Observed]) {
        let part = 1.0 - (-interval.seconds / CAPACITY_FOLLOWS).exp();
        if interval.busy >= BUSY || self.capacity <= 0.0 {
            let seen = interval.throughput * (1.0 + PROBE);
            self.capacity = follow(self.capacity, seen, part).max(seen);
        } else {
            let held = self.held_back(tree, observed);
            let held = if interval.busy < IDLE {
                held.ceil()
            } else {
                held
            };
            let could = BUSY / interval.busy.max(BUSY / MOST_GROWTH) - 1.0;
            self.capacity *= 1.0 + held * could * part;
        }
        self.capacity = self.capacity.max(LEAST_BYTES);
    }

    /// The part of the weight of those who contend that uses up its limits.
    fn held_back(&self, tree: &Tree<Demand>, observed: &[Observed]) -> f64 {
        let shares = shares(tree, observed, |one| self.contends(one));
        let held = |(one, _): &(&Observed, f64)| {
            self.contends(one) && self.tenants[&one.id].uses_up(&one.flow)
        };
        let held = observed.iter().zip(shares).filter(held);
        held.map(|(_, share)| share).sum()
    }

    /// Integrates how far each tenant that contends is from its part of what all get. Only what one has beside another counts, so
    /// the mean is taken off.
    fn correct(&mut self, seconds: f64, observed: &[Observed], targets: &[f64]) {
        let (mut sum, mut of) = (0.0, 0.0);
        for (one, target) in observed.iter().zip(targets) {
            let Some(state) = self.tenants.get_mut(&one.id) else {
                continue;
            };
            if state.idle < LATELY && *target > 0.0 {
                state.correct(one, *target, seconds);
                sum += target * state.correction;
                of += target;
            } else {
                state.correction *= (-seconds / SLOWEST).exp();
            }
        }
        let mean = sum / of.max(f64::MIN_POSITIVE);
        let contending = self.tenants.values_mut().filter(|t| t.idle < LATELY);
        contending.for_each(|state| state.correction -= mean);
    }

    /// Weights of the nodes, corrected: an inner node's by what its leaves that contend are on the mean.
    fn corrected(&self, tree: &Tree<Demand>, observed: &[Observed]) -> Vec<f64> {
        let weights = weights(tree);
        let mut corrections = vec![(0.0, 0.0); tree.len()];
        for one in observed.iter().filter(|one| self.contends(one)) {
            let weight = weights[one.node.index()];
            let correction = self.tenants[&one.id].correction;
            for node in std::iter::once(one.node).chain(tree.ancestors(one.node)) {
                let (sum, of) = &mut corrections[node.index()];
                *sum += weight * correction;
                *of += weight;
            }
        }
        let corrected = |(weight, (sum, of)): (f64, (f64, f64))| {
            let mean = if of > 0.0 { sum / of } else { 0.0 };
            weight * mean.exp()
        };
        weights
            .into_iter()
            .zip(corrections)
            .map(corrected)
            .collect()
    }

    /// The budget distributor ("All containers are allocated credits in proportion to their I/O weight", slides "Budget
    /// Distributor").
    fn allow(&mut self, tree: &Tree<Demand>, observed: &[Observed]) -> Vec<Allowance> {
        let capacity = self.capacity;
        let demand = |one: &Observed| match self.contends(one) {
            true => capacity,
            false => (one.flow.bytes() * PREDICTED).min(capacity),
        };
        let shares = divide(tree, &weights(tree), observed, demand, capacity);
        let corrected = self.corrected(tree, observed);
        let parts = divide(tree, &corrected, observed, demand, capacity);
        let mut allowances = Vec::new();
        for ((one, share), part) in observed.iter().zip(shares).zip(parts) {
            let contends = self.contends(one);
            let Some(state) = self.tenants.get_mut(&one.id) else {
                continue;
            };
            if contends && one.limitable {
                state.limit(part);
            } else {
                state.forget_limits();
            }
            if contends {
                allowances.push(Allowance {
                    id: one.id,
                    part: part / capacity,
                    share: share / capacity,
                    correction: state.correction.exp(),
                    capacity,
                    limits: state.limits,
                });
            }
        }
        allowances
    }
}

impl State {
    fn notice(&mut self, one: &Observed, takes: bool, seconds: f64) {
        let flow = &one.flow;
        let used_up = self.uses_up(flow);
        let here = flow.is_some() || one.dirty > 0;
        if here && (one.stalled >= STALLED || used_up || takes) {
            self.idle = 0.0;
        } else {
            self.idle += seconds;
        }
        let part = 1.0 - (-seconds / LATELY).exp();
        self.got = follow(self.got, one.application.max(0.0), part);
        if flow.bytes() > 0.0 {
            self.reads = follow(self.reads, flow.rbytes / flow.bytes(), part);
        }
    }

    fn correct(&mut self, one: &Observed, target: f64, seconds: f64) {
        // Twice its part counts as much as nothing: more would be corrected for longer than it lasted.
        let error = (1.0 - one.application.max(0.0) / target).max(-1.0);
        let late = to_f64(one.dirty) / one.flow.wbytes.max(LEAST_BYTES);
        let time = (CORRECTED_IN + late).min(SLOWEST);
        let most = MOST_CORRECTION.ln();
        self.correction = (self.correction + error * seconds / time).clamp(-most, most);
    }

    fn uses_up(&self, flow: &Flow) -> bool {
        self.limits.used(flow) >= USED_UP
    }

    fn forget_limits(&mut self) {
        self.limits = Limits::default();
    }

    /// Limits of so many bytes per second, read as well as written.
    fn limit(&mut self, bytes: f64) {
        let direction = |part: f64, stands: Option<u64>| {
            let limit = bytes * (part + LEAST_DIRECTION / 2.0).clamp(LEAST_DIRECTION, 1.0);
            let limit = to_u64(limit.max(LEAST_BYTES));
            match stands {
                Some(stands) if to_f64(stands.abs_diff(limit)) <= DEADBAND * to_f64(stands) => {
                    stands
                }
                _ => limit,
            }
        };
        self.limits = Limits {
            rbps: Some(direction(self.reads, self.limits.rbps)),
            wbps: Some(direction(1.0 - self.reads, self.limits.wbps)),
            ..Limits::default()
        };
    }
}

fn follow(from: f64, to: f64, part: f64) -> f64 {
    if from <= 0.0 {
        to
    } else {
        from + (to - from) * part
    }
}

/// The weights of the nodes.
fn weights(tree: &Tree<Demand>) -> Vec<f64> {
    tree.values()
        .map(|own| f64::from(u32::from(own.weight)))
        .collect()
}

/// Each tenant's share by weight among those of which this holds.
fn shares(
    tree: &Tree<Demand>,
    observed: &[Observed],
    among: impl Fn(&Observed) -> bool,
) -> Vec<f64> {
    let demand = |one: &Observed| f64::from(u8::from(among(one)));
    divide(tree, &weights(tree), observed, demand, 1.0)
}

/// What each tenant gets of `amount`, divided down the tree by these weights, at most its demand.
fn divide(
    tree: &Tree<Demand>,
    weights: &[f64],
    observed: &[Observed],
    demand: impl Fn(&Observed) -> f64,
    amount: f64,
) -> Vec<f64> {
    let mut demands = vec![0.0; tree.len()];
    for one in observed {
        demands[one.node.index()] = demand(one);
    }
    let parts = water_fill(tree, weights, &demands, amount);
    observed.iter().map(|one| parts[one.node.index()]).collect()
}

/// Divides `amount` down the tree by these weights, at most its demand for each leaf (those of inner nodes are not looked at):
/// weighted max-min in every group of siblings. What nobody demands is left.
pub(crate) fn water_fill(
    tree: &Tree<Demand>,
    weights: &[f64],
    demands: &[f64],
    amount: f64,
) -> Vec<f64> {
    let bids = tree.fold_up(
        |sum: &mut (f64, f64), child: &(f64, f64)| {
            sum.0 += child.0;
            sum.1 += if child.0 > 0.0 { child.1 } else { 0.0 };
        },
        |node, own, below| {
            let weight = weights[node.index()];
            if tree.is_leaf(node) {
                return (demands[node.index()], weight);
            }
            let sums = own.sums_weights && below.1 > 0.0;
            (below.0, if sums { below.1 } else { weight })
        },
    );
    let mut parts = vec![0.0; tree.len()];
    for parent in tree.parents() {
        let mut left = parent.map_or(amount, |parent| parts[parent.index()]);
        let mut group: Vec<(NodeId, (f64, f64))> = tree
            .children(parent)
            .map(|child| (child, bids[child.index()]))
            .collect();
        // Who demands least for its weight first: what it leaves is divided among the others.
        group.sort_by(|(_, a), (_, b)| (a.0 / a.1).total_cmp(&(b.0 / b.1)));
        let mut weight: f64 = group.iter().map(|(_, bid)| bid.1).sum();
        for (child, (demand, own)) in group {
            let part = demand.min(left * own / weight.max(f64::MIN_POSITIVE));
            parts[child.index()] = part;
            left -= part;
            weight -= own;
        }
    }
    parts
}
