//! The loop of one device: from what was seen in an interval to what each tenant may spend in the next.

use std::collections::{HashMap, HashSet};

use super::carry::Residual;
use super::correct::Correction;
use super::distribute::{demand, distribute};
use super::limit::{self, Limits};
use super::predict::{Predict, Swift};
use super::price::{Flow, Prices};
use super::total::{BUSY, TotalCredit, Verdict};
use crate::tree::{Claim, NodeId, Tree};

/// The loop's constants. The defaults suit every device we know.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// Contention lasts this many seconds before anybody is limited. Default 0.4.
    pub engage_after: f64,
    /// Without contention limits stay this many seconds; longer where contention came back soon. Default 2.
    pub release_after: f64,
    /// How much less than the device's capacity is handed out, so that its queue stays short: in a long one
    /// whoever has most requests gets most. The updater finds what can be had beyond. Default 0.01.
    pub reserve: f64,
    /// A queue longer than this, in seconds, is emptied first. Default 0.05.
    pub delay: f64,
    /// A tenant carries over at most this part of its budget. Default 0.25.
    pub carry: f64,
    /// Limits that would move by less than this part stay. Default 0.04.
    pub deadband: f64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            engage_after: 0.4,
            release_after: 2.0,
            reserve: 0.01,
            delay: 0.05,
            carry: 0.25,
            deadband: 0.04,
        }
    }
}

/// An interval, as the device saw it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Interval {
    /// Its length, seconds.
    pub seconds: f64,
    /// The part of it in which the device had requests, 0 to 1.
    pub busy: f64,
    /// Requests that it completed over those that it was given: below 1 its queue has grown, above it has
    /// shrunk. What a queue takes in is not yet done.
    pub kept_up: f64,
    /// How long its queue is: the requests in it at the end of the interval over those that it completes a
    /// second, seconds.
    pub delay: f64,
}

/// A tenant's interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Observed {
    /// The same tenant has the same number in every interval.
    pub id: u64,
    /// Its node in the tree.
    pub node: NodeId,
    /// What it transferred to and from the device, per second.
    pub flow: Flow,
    /// The part of the interval in which any of its tasks waited for I/O, 0 to 1.
    pub stalled: f64,
    /// What its applications read and wrote, bytes per second, cached or not; `None` where unknown.
    pub application: Option<f64>,
    /// Whether it has dirty pages to speak of: then what holds it may be their room, not its credits.
    pub buffered: bool,
    /// Whether it can be limited.
    pub limitable: bool,
}

/// What a tenant may spend in the next interval, and why.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Allowance {
    /// Who.
    pub id: u64,
    /// What it may spend, as a part of the device's time.
    pub part: f64,
    /// What it is entitled to by weight if all want all they can get.
    pub share: f64,
    /// What it is expected to want; `None` if all that it can get.
    pub demand: Option<f64>,
    /// The factor by which its part was corrected for what its applications get.
    pub correction: f64,
    /// Credits carried over, as a part of the device's second.
    pub residual: f64,
    /// Its limits.
    pub limits: Limits,
}

impl Allowance {
    /// Whether it uses up what it may spend: such tenants contend.
    #[must_use]
    pub const fn held(&self) -> bool {
        self.demand.is_none()
    }
}

/// Without I/O for so many seconds a tenant is not active and carries no limit.
const ACTIVE: f64 = 1.5;
/// From this part of the interval on, being stalled is waiting.
const STALLED: f64 = 0.3;
/// A tenant that uses this part of its limit wants more.
const USED_UP: f64 = 0.9;
/// For each second that the queue is too long, so much less of the device is handed out; at most the other.
const EMPTYING: f64 = 0.5;
const MOST_EMPTYING: f64 = 0.1;
/// A queue that is still too long after so many seconds is the device's nature.
const PATIENT: f64 = 5.0;
const EMPTYING_STEP: f64 = 0.05;
/// If those who wait got less than this part of what they were allowed, it is no noise.
const FAR_OFF: f64 = 0.85;
/// One that has, and now uses this part, still counts as held for [`STICKS`] seconds.
const NEARLY_USED_UP: f64 = 0.7;
const STICKS: f64 = 1.0;
/// What a tenant has spent is remembered with this time constant, seconds; below this part of it, on a full
/// device, it is squeezed, and counts as held for so many seconds.
const PEAK: f64 = 10.0;
const SQUEEZED: f64 = 0.85;
const PROTECTED: f64 = 1.5;
/// A tenant that moves less than this part of all bytes and of all requests does not contend.
const SOME: f64 = 0.03;
/// A prediction is exceeded by this much before it holds its tenant.
const HEADROOM: f64 = 1.25;
/// Contention that comes back within so many seconds makes the loop more patient.
const SOON: f64 = 10.0;
const MOST_PATIENCE: f64 = 16.0;
/// How fast averages follow: the time constant in seconds.
const SMOOTH: f64 = 0.6;
/// A share that moves by more than this part is a step.
const STEP: f64 = 0.1;
/// So many seconds after a step, corrections go on.
const SETTLED: f64 = 2.5;

#[derive(Clone, Copy, Debug, Default)]
struct State {
    mix: Flow,
    application: f64,
    predictor: Swift,
    residual: Residual,
    correction: Correction,
    quiet: f64,
    seen: bool,
    /// Waits for the device.
    waiting: bool,
    /// Uses up what it may spend, or nothing limits it while it waits.
    held: bool,
    /// Since it last used up what it may spend, seconds.
    lacking: f64,
    /// What it spends on the average, and the most that this was lately.
    spends: f64,
    peak: f64,
    /// For so many seconds more, what it does not use may be what others took.
    squeezed: f64,
    /// Is corrected: what it gets depends on its credits or its room.
    corrected: bool,
    /// Its share, and for how long that has been so.
    share: f64,
    settled: f64,
    /// What it was thought to spend.
    expected: f64,
    standing: Option<(f64, Limits)>,
}

/// Credits of one device.
#[derive(Clone, Debug)]
pub struct CreditLoop {
    settings: Settings,
    total: TotalCredit,
    states: HashMap<u64, State>,
    flow: Flow,
    fulfilled: Option<f64>,
    engaged: bool,
    contended: f64,
    released: f64,
    quiet: f64,
    patience: f64,
    /// For how long the device's queue has been too long, seconds.
    emptying: f64,
    verdict: Verdict,
}

impl CreditLoop {
    /// A loop that knows nothing yet.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        Self {
            settings,
            total: TotalCredit::default(),
            states: HashMap::new(),
            flow: Flow::default(),
            fulfilled: None,
            engaged: false,
            contended: 0.0,
            released: SOON,
            quiet: 0.0,
            patience: settings.release_after,
            emptying: 0.0,
            verdict: Verdict::Silent,
        }
    }

    /// Whether tenants are limited.
    #[must_use]
    pub const fn engaged(&self) -> bool {
        self.engaged
    }

    /// What the last interval said of the device.
    #[must_use]
    pub const fn verdict(&self) -> Verdict {
        self.verdict
    }

    /// What I/O is thought to cost, once a saturated interval was seen.
    #[must_use]
    pub const fn prices(&self) -> Option<Prices> {
        self.total.prices()
    }

    /// Takes in an interval and says what each tenant may spend in the next: an allowance for every active
    /// tenant while the device is contended, none otherwise. The claims' weights count, their demands and
    /// floors do not. Intervals of 0.1 to 1 second.
    pub fn step(
        &mut self,
        tree: &Tree,
        interval: Interval,
        tenants: &[Observed],
    ) -> Vec<Allowance> {
        self.notice(interval, tenants);
        let waiting = tenants.iter().filter(|t| self.state(t.id).waiting).count();
        self.decide(interval, waiting >= 2);
        self.learn(interval, waiting >= 2);
        let here: HashSet<u64> = tenants.iter().map(|tenant| tenant.id).collect();
        self.states.retain(|id, _| here.contains(id));
        match self.total.prices() {
            Some(prices) if self.engaged => self.allow(tree, interval, tenants, &prices),
            _ => {
                for state in self.states.values_mut() {
                    state.standing = None;
                    state.residual = Residual::default();
                    state.correction.fade(interval.seconds);
                }
                self.fulfilled = None;
                Vec::new()
            }
        }
    }

    fn state(&self, id: u64) -> State {
        self.states.get(&id).copied().unwrap_or_default()
    }

    /// Follows each tenant: its mixture, its demand, whether it waits.
    fn notice(&mut self, interval: Interval, tenants: &[Observed]) {
        let follow = 1.0 - (-interval.seconds / SMOOTH).exp();
        let prices = self.total.prices();
        let sum = tenants
            .iter()
            .fold(Flow::default(), |sum, t| sum.plus(&t.flow));
        let mut all = Flow::default();
        let (mut got, mut allowed) = (0.0, 0.0);
        for tenant in tenants {
            all = all.plus(&tenant.flow);
            let state = self.states.entry(tenant.id).or_default();
            let follow = if state.seen { follow } else { 1.0 };
            if tenant.flow.is_some() {
                state.mix = state.mix.towards(&tenant.flow, follow);
                state.quiet = 0.0;
                state.seen = true;
            } else {
                state.quiet += interval.seconds;
            }
            if let Some(bandwidth) = tenant.application {
                state.application += (bandwidth - state.application) * follow;
            }
            let used = state.standing.map(|(_, limits)| limits.used(&tenant.flow));
            let active = state.seen && state.quiet < ACTIVE;
            // Tasks that wait for asynchronous I/O are not stalled to the kernel: while the device is full,
            // whoever moves something to speak of counts as waiting for it. While it has pauses, who is
            // within its limits waits for something else.
            let full = interval.busy >= BUSY;
            let some = moves(&tenant.flow, &sum);
            let used_up = used.is_some_and(|part| part >= USED_UP);
            let stalled = tenant.stalled >= STALLED && (used.is_none() || full);
            state.waiting = active && (stalled || used_up || (full && some));
            state.lacking = if used_up {
                0.0
            } else {
                state.lacking + interval.seconds
            };
            let nearly = state.held
                && state.lacking < STICKS
                && used.is_some_and(|part| part >= NEARLY_USED_UP);
            // Where the device was the limit, a tenant that gets less than before may be losing to others:
            // what it does not use is nothing to give away.
            if let Some(prices) = prices {
                let spent = prices.cost(&tenant.flow);
                state.spends += (spent - state.spends) * follow;
                let peak = state.peak * (-interval.seconds / PEAK).exp();
                state.peak = state.spends.max(peak);
                let squeezed = full
                    && self.verdict == Verdict::Saturated
                    && state.waiting
                    && state.spends < SQUEEZED * state.peak;
                state.squeezed = if squeezed {
                    PROTECTED
                } else {
                    state.squeezed - interval.seconds
                };
            }
            state.held = active
                && (used_up || nearly || (state.waiting && used.is_none()) || state.squeezed > 0.0);
            state.corrected = active
                && tenant.application.is_some()
                && (state.held || (tenant.buffered && tenant.stalled >= STALLED));
            let Some(prices) = prices else { continue };
            let spent = prices.cost(&tenant.flow);
            if let (true, Some(used)) = (state.waiting, used) {
                allowed += state.expected;
                // Limits are kept on the average, and may be a little late or early in one interval.
                got += if used_up {
                    state.expected * used.min(1.1)
                } else {
                    spent.min(state.expected)
                };
            }
            state.predictor.observe(spent);
        }
        let kept_up = interval.kept_up.clamp(0.1, 2.0);
        let got = got * kept_up;
        all = all.times(kept_up);
        self.flow = if self.engaged && self.verdict != Verdict::Silent {
            self.flow.towards(&all, follow)
        } else {
            all
        };
        self.fulfilled = (allowed > 0.0).then(|| {
            let now = got / allowed;
            // What is far off counts at once.
            self.fulfilled
                .filter(|_| now >= FAR_OFF)
                .map_or(now, |before| before + (now - before) * follow)
        });
    }

    /// Engages on contention, and lets go when it has ended.
    fn decide(&mut self, interval: Interval, contended: bool) {
        let seconds = interval.seconds;
        if self.engaged {
            self.quiet = if contended { 0.0 } else { self.quiet + seconds };
            if self.quiet >= self.patience {
                self.engaged = false;
                self.released = 0.0;
                self.contended = 0.0;
            }
            return;
        }
        self.released += seconds;
        let contended = contended && interval.busy >= BUSY;
        self.contended = if contended {
            self.contended + seconds
        } else {
            0.0
        };
        if self.contended >= self.settings.engage_after {
            self.patience = if self.released < SOON {
                (self.patience * 2.0).min(MOST_PATIENCE)
            } else {
                self.settings.release_after
            };
            self.engaged = true;
            self.quiet = 0.0;
        }
    }

    fn learn(&mut self, interval: Interval, contended: bool) {
        // Alone, a tenant shows what the device can do as well; but only while it is held back is there any
        // use in knowing.
        let waits = contended
            || self
                .states
                .values()
                .any(|s| s.waiting && s.standing.is_some());
        self.verdict = TotalCredit::judge(interval.busy, waits, self.fulfilled);
        if interval.delay > self.settings.delay {
            self.emptying += interval.seconds;
            if self.verdict == Verdict::Held && self.emptying < PATIENT {
                // What is being emptied was handed out before.
                self.verdict = Verdict::Silent;
            }
        } else {
            self.emptying = 0.0;
        }
        self.total.update(self.verdict, &self.flow);
    }

    /// Distributes, corrects, and turns credits into limits.
    fn allow(
        &mut self,
        tree: &Tree,
        interval: Interval,
        tenants: &[Observed],
        prices: &Prices,
    ) -> Vec<Allowance> {
        let active: Vec<&Observed> = tenants
            .iter()
            .filter(|t| self.state(t.id).seen && self.state(t.id).quiet < ACTIVE)
            .collect();
        let demands: Vec<Option<f64>> = active
            .iter()
            .map(|tenant| {
                let state = self.state(tenant.id);
                (!state.held).then(|| state.predictor.predict() * HEADROOM)
            })
            .collect();
        let long = if self.emptying < PATIENT {
            (interval.delay - self.settings.delay).max(0.0)
        } else {
            0.0
        };
        // In whole steps, so that limits need not follow every request.
        let emptying = (long * EMPTYING / EMPTYING_STEP).ceil() * EMPTYING_STEP;
        let whole = 1.0 - self.settings.reserve - emptying.min(MOST_EMPTYING);
        let parts = divided(tree, whole, &active, |i| demands[i].unwrap_or(whole));
        let shares = divided(tree, whole, &active, |_| whole);
        let factors = self.correct(interval, &active, &parts, &shares);

        let mut allowances = Vec::with_capacity(active.len());
        for (i, tenant) in active.iter().enumerate() {
            let (demand, part, share, factor) = (demands[i], parts[i], shares[i], factors[i]);
            let state = self.states.entry(tenant.id).or_default();
            let fulfilled = self.fulfilled.unwrap_or(1.0).min(1.0);
            if let (Some((budget, _)), true) = (state.standing, state.held) {
                let used = prices.cost(&tenant.flow) * interval.seconds;
                let budget = budget * interval.seconds * fulfilled;
                state.residual.settle(budget, used, self.settings.carry);
            }
            state.expected = part * factor;
            // A limit reserves nothing: who does not wait may have its whole share at any time.
            let least = if demand.is_some() { share } else { 0.0 };
            let part = part.max(least) * factor;
            let residual = state.residual.credits();
            let limits = limit::limits(prices, &state.mix, (part + residual).max(part / 2.0));
            let standing = match state.standing {
                Some((part, standing)) if limits.near(&standing, self.settings.deadband) => {
                    (part, standing)
                }
                _ => (part, limits),
            };
            state.standing = tenant.limitable.then_some(standing);
            allowances.push(Allowance {
                id: tenant.id,
                part,
                share,
                demand,
                correction: factor,
                residual,
                limits: if tenant.limitable {
                    standing.1
                } else {
                    Limits::default()
                },
            });
        }
        for tenant in tenants {
            let state = self.states.entry(tenant.id).or_default();
            if state.quiet >= ACTIVE {
                state.standing = None;
                state.residual = Residual::default();
                state.share = 0.0;
            }
        }
        allowances
    }

    /// The factors of the active tenants: what the applications of those who contend get is brought to their
    /// parts; together those keep what they had.
    fn correct(
        &mut self,
        interval: Interval,
        active: &[&Observed],
        parts: &[f64],
        shares: &[f64],
    ) -> Vec<f64> {
        let (mut got, mut entitled) = (0.0, 0.0);
        for ((tenant, part), share) in active.iter().zip(parts).zip(shares) {
            let state = self.states.entry(tenant.id).or_default();
            // After a step, averages and limits need a moment to show what it has done.
            if (share - state.share).abs() > STEP * state.share {
                (state.share, state.settled) = (*share, 0.0);
            } else {
                state.settled += interval.seconds;
            }
            if state.corrected {
                got += state.application;
                entitled += part;
            }
        }
        let (mut before, mut after) = (0.0, 0.0);
        for (tenant, part) in active.iter().zip(parts) {
            let state = self.states.entry(tenant.id).or_default();
            if state.corrected && entitled > 0.0 {
                if state.settled >= SETTLED {
                    let ideal = got * part / entitled;
                    state
                        .correction
                        .correct(state.application, ideal, interval.seconds);
                }
                before += part;
                after += part * state.correction.factor();
            } else {
                state.correction.fade(interval.seconds);
            }
        }
        let scale = if after > 0.0 { before / after } else { 1.0 };
        let factor = |tenant: &&Observed| {
            let state = self.state(tenant.id);
            if state.corrected {
                state.correction.factor() * scale
            } else {
                1.0
            }
        };
        active.iter().map(factor).collect()
    }
}

/// Whether a flow is something to speak of beside `all`.
fn moves(flow: &Flow, all: &Flow) -> bool {
    flow.bytes() > SOME * all.bytes() || flow.rios + flow.wios > SOME * (all.rios + all.wios)
}

/// `whole` divided in the tree, where only the active tenants demand anything. Indexed like `active`.
fn divided(
    tree: &Tree,
    whole: f64,
    active: &[&Observed],
    wants: impl Fn(usize) -> f64,
) -> Vec<f64> {
    let mut tree = tree.clone();
    let mut parents = vec![false; tree.len()];
    for node in tree.tenants() {
        parents[tree.parent(node).index()] = true;
    }
    for node in tree.tenants() {
        let claim = Claim {
            floor: 0,
            demand: if parents[node.index()] { u64::MAX } else { 0 },
            ..tree.claim(node)
        };
        tree.set_claim(node, claim);
    }
    for (i, tenant) in active.iter().enumerate() {
        let claim = Claim {
            demand: demand(wants(i)),
            ..tree.claim(tenant.node)
        };
        tree.set_claim(tenant.node, claim);
    }
    let parts = distribute(&tree, whole);
    active.iter().map(|t| parts[t.node.index()]).collect()
}
