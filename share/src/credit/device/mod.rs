//! The loop of one device: from what was seen in an interval to what each tenant may spend in the next.

mod allow;
mod belief;
mod notice;
mod observed;
mod unfair;
mod vouch;

use std::collections::{HashMap, HashSet};

use super::carry::Residual;
use super::price::{Flow, Prices};
use super::total::{BUSY, IDLE, PAUSES, TotalCredit, Verdict};
use crate::{Demand, Tree};
pub use allow::MOST_EMPTYING;
use belief::Belief;
use notice::{ACTIVE, STALLED, State};
pub use observed::{Allowance, BUFFERED, Interval, Observed};

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
    /// Limits that would move by less than this part stay. Default 0.06.
    pub deadband: f64,
    /// Limits stay for so many seconds, unless they would move by more than `hasty`: each movement costs, and what is a
    /// little late is carried over. Default 1.
    pub hold: f64,
    /// See `hold`. Default 0.1.
    pub hasty: f64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            engage_after: 0.4,
            release_after: 2.0,
            reserve: 0.01,
            delay: 0.05,
            carry: 0.25,
            deadband: 0.06,
            hold: 1.0,
            hasty: 0.1,
        }
    }
}

/// A queue that is still too long after so many seconds is the device's nature.
const PATIENT: f64 = 5.0;
/// Contention that comes back within so many seconds makes the loop more patient.
const SOON: f64 = 10.0;
const MOST_PATIENCE: f64 = 16.0;
/// For how long tenants that wait behind each other's data, as those of one file system do for its journal, are taken
/// to do so: looking again means limits, and those hold everybody up, not the limited one alone.
const COUPLED: Belief = Belief::new(5.0, 60.0);
/// For how long one that takes more than others of equal weight is held back before it is looked whether it still does.
const UNFAIR: Belief = Belief::new(20.0, 320.0);
/// Who has done nothing here for so many seconds waits for something else; and what was so long ago is over.
const LATELY: f64 = 10.0;
/// Pauses for so many seconds together are no accident.
const LONG: f64 = 0.7;
/// Who uses less than this part of his limits does little.
const LITTLE: f64 = 0.5;

/// Credits of one device.
#[derive(Clone, Debug)]
pub struct CreditLoop {
    settings: Settings,
    total: TotalCredit,
    states: HashMap<u64, State>,
    /// What the device does, on the average, and did in the last interval; nothing if that cannot be told.
    flow: Flow,
    done: Flow,
    /// Since the device last gave way, seconds.
    steady: f64,
    fulfilled: Option<f64>,
    engaged: bool,
    contended: f64,
    released: f64,
    quiet: f64,
    patience: f64,
    /// For how long the device's queue has been too long, seconds.
    emptying: f64,
    /// Whether tenants wait behind each other's data.
    coupled: Belief,
    /// For how long the device has had pauses while several waited for that, seconds, and whether that keeps it idle.
    pauses: f64,
    standstill: Belief,
    /// Whether somebody of equal weight takes more than others.
    unfair: Belief,
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
            done: Flow::default(),
            steady: LATELY,
            fulfilled: None,
            engaged: false,
            contended: 0.0,
            released: SOON,
            quiet: 0.0,
            patience: settings.release_after,
            emptying: 0.0,
            coupled: COUPLED,
            pauses: 0.0,
            standstill: COUPLED,
            unfair: UNFAIR,
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
    /// tenant while the device is contended and there is something to correct, none otherwise. The claims' weights
    /// count, their demands and minimums do not. Intervals of 0.1 to 1 second.
    pub fn step(
        &mut self,
        tree: &Tree<Demand>,
        interval: Interval,
        tenants: &[Observed],
    ) -> Vec<Allowance> {
        let tenants = &self.vouched(interval, tenants);
        self.notice(interval, tenants);
        let waiting: Vec<&Observed> = tenants
            .iter()
            .filter(|tenant| self.state(tenant.id).waiting)
            .collect();
        let contended = waiting.len() >= 2;
        let unfair = self.unfair(tree, interval, &waiting);
        self.decide(interval, contended && unfair);
        self.learn(interval, contended);
        self.look_behind(interval, tenants);
        let here: HashSet<u64> = tenants.iter().map(|tenant| tenant.id).collect();
        self.states.retain(|id, _| here.contains(id));
        match self.total.prices() {
            Some(prices) if self.engaged => self.allow(tree, interval, tenants, &prices),
            _ => {
                for state in self.states.values_mut() {
                    state.standing = None;
                    (state.lifted, state.free) = (false, false);
                    state.residual = Residual::default();
                    state.correction.fade(interval.seconds);
                    (state.share, state.settled) = (0.0, 0.0);
                }
                self.fulfilled = None;
                Vec::new()
            }
        }
    }

    fn state(&self, id: u64) -> State {
        self.states.get(&id).copied().unwrap_or_default()
    }

    /// Engages on contention, and lets go when it has ended.
    fn decide(&mut self, interval: Interval, contended: bool) {
        let seconds = interval.seconds;
        if self.engaged {
            // Of a device that does little nobody is kept by others: whatever they wait for, limits are no help.
            let quiet = !contended || interval.busy < IDLE;
            self.quiet = if quiet { self.quiet + seconds } else { 0.0 };
            if self.quiet >= self.patience {
                self.engaged = false;
                self.released = 0.0;
                self.contended = 0.0;
            }
            return;
        }
        self.released += seconds;
        // A pause in between, as at the beginning, is not the end of it.
        if contended && interval.busy >= BUSY {
            self.contended += seconds;
        } else if !contended || interval.busy < PAUSES {
            self.contended = 0.0;
        }
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

    /// Whether somebody waits for another's data: he waits, and has done little of what his limits leave him. Who
    /// has done more waits for the device. So does who has much to write, unless the device has pauses and several such
    /// wait.
    fn look_behind(&mut self, interval: Interval, tenants: &[Observed]) {
        let waits = |tenant: &&Observed| {
            let state = self.state(tenant.id);
            let little = match state.standing {
                Some((_, limits)) => limits.used(&state.mix) < LITTLE,
                // What it waits for may be on another disk, unless it used this one of late.
                None => state.seen && (ACTIVE..LATELY).contains(&state.quiet),
            };
            state.stalled >= STALLED && little
        };
        let behind = |tenant: &Observed| waits(&tenant) && !self.state(tenant.id).held;
        let full = || tenants.iter().filter(|tenant| tenant.dirty >= BUFFERED);
        let stands = interval.busy < PAUSES && full().filter(waits).count() >= 2;
        // While anybody's limit is lifted, others wait behind him in the device's queue; and where nobody has anything
        // dirty, nobody waits for it.
        let lifted = self.states.values().any(|state| state.lifted);
        let somebody = stands || self.verdict == Verdict::Stuck || tenants.iter().any(behind);
        let found = somebody && full().count() > 0 && !lifted;
        if self.engaged {
            self.pauses = if stands {
                self.pauses + interval.seconds
            } else {
                0.0
            };
            self.coupled.step(found, interval.seconds);
            self.standstill.step(self.pauses >= LONG, interval.seconds);
        } else {
            (self.coupled, self.standstill, self.pauses) = (COUPLED, COUPLED, 0.0);
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
        self.total.update(self.verdict, interval.busy, &self.flow);
        self.steady += interval.seconds;
        if self
            .total
            .gives_way(self.verdict, &self.done, interval.seconds)
        {
            (self.flow, self.steady) = (self.done, 0.0);
        }
    }
}
