//! The TotalCredit updater: how much the device can do ("In order to remove storage idle time, TotalCredit is
//! adjusted", slides "TotalCredit Updater"), without being told, and without mistaking a pause for a limit.

use super::price::{Flow, Prices};

/// What an interval said about the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The device's queue was never empty and those who wait for it got less than they were allowed: what it
    /// did is what it can do.
    Saturated,
    /// Those who wait got what they were allowed: the device can do that much, perhaps more.
    Held,
    /// Somebody waits, and yet the device had pauses: the limits may be what keeps it from working.
    Paused,
    /// The same, and the device did little at all: those who wait may wait for each other, behind the one that
    /// is limited most (a journal's commit waits for its data). That costs everybody.
    Stuck,
    /// Nobody waits: it says nothing. A dip in demand is not a dip in capacity.
    Silent,
}

/// What is known of a device's capacity: [`Prices`], at which it makes one credit a second.
#[derive(Clone, Copy, Debug)]
pub struct TotalCredit {
    prices: Option<Prices>,
    /// How much cheaper everything has become without anybody having got that much.
    grown: f64,
    /// The logarithm of the same, whether or not they got it, less what saturated intervals have proven or refuted.
    cheaper: f64,
    /// The next step of growth.
    step: f64,
    /// For how many seconds the device has done far less than it is thought to, and what it did meanwhile.
    little: f64,
    done: Flow,
}

/// A device is saturated if its queue was non-empty for this part of the interval.
pub const BUSY: f64 = 0.95;
/// Those who wait have got what they were allowed if it was this part of it.
pub const FULFILLED: f64 = 0.97;
/// Limits are kept a little below what they say; on a device that is busy for less than the other part, and so has time to
/// spare, this is enough.
const NEARLY_FULFILLED: f64 = 0.9;
pub(super) const PAUSES: f64 = 0.8;
/// A device that is busy for less than this part of the interval does little.
pub(super) const IDLE: f64 = 0.4;
/// The first step of growth; each further one is twice as large, up to [`LARGEST_STEP`].
const FIRST_STEP: f64 = 0.01;
const LARGEST_STEP: f64 = 0.1;
/// Where those who wait got what they were allowed and the device had pauses, it can do so much more as it had time for, up
/// to twice as much; where it did little, growth begins with the largest step.
const LARGEST_STEP_IDLE: f64 = 1.0;
/// Credits that nobody has proven to exist grow to this multiple of those that were, no further.
const MOST_GROWTH: f64 = 2.0;
/// Where those who wait may wait for each other, the limits among them, to this multiple.
const MOST_GROWTH_STUCK: f64 = 8.0;
/// How far one saturated interval moves the prices.
const RATE: f64 = 0.4;
/// A saturated device that does less than this part of what it is thought to, for so many seconds, has given way: that is
/// what it can do now, and to come to it step by step would leave it without limits for seconds.
const GIVEN_WAY: f64 = 0.5;
const SURE: f64 = 0.4;

impl Default for TotalCredit {
    fn default() -> Self {
        Self {
            prices: None,
            grown: 1.0,
            cheaper: 0.0,
            step: FIRST_STEP,
            little: 0.0,
            done: Flow::default(),
        }
    }
}

impl TotalCredit {
    /// The prices, once a saturated interval was seen.
    #[must_use]
    pub const fn prices(&self) -> Option<Prices> {
        self.prices
    }

    /// What an interval says. `busy` is the part of it in which the device had requests, `waiting` whether
    /// anybody waits for the device, `fulfilled` which part of their allowance those who wait have got
    /// (`None` where nothing limits them).
    #[must_use]
    pub fn judge(busy: f64, waiting: bool, fulfilled: Option<f64>) -> Verdict {
        let enough = if busy < PAUSES {
            NEARLY_FULFILLED
        } else {
            FULFILLED
        };
        if !waiting {
            Verdict::Silent
        } else if busy >= BUSY && fulfilled.is_none_or(|part| part < enough) {
            Verdict::Saturated
        } else if fulfilled.is_some_and(|part| part >= enough) {
            Verdict::Held
        } else if fulfilled.is_some() && busy < IDLE {
            Verdict::Stuck
        } else if fulfilled.is_some() {
            Verdict::Paused
        } else {
            Verdict::Silent
        }
    }

    /// Takes in an interval, in which the device was `busy` and the tenants' `flow` was seen.
    pub fn update(&mut self, verdict: Verdict, busy: f64, flow: &Flow) {
        match (verdict, &mut self.prices) {
            (Verdict::Saturated, None) => self.prices = Prices::first(flow),
            (Verdict::Saturated, Some(prices)) => {
                // What became cheaper for everybody becomes dearer for everybody: learning makes dearer what there is most
                // of, and the rest would stay cheap for ever.
                let cost = prices.cost(flow);
                let dearer = if cost > 0.0 { -RATE * cost.ln() } else { 0.0 };
                let back = dearer.clamp(0.0, self.cheaper);
                prices.scale(back.exp());
                prices.shift(flow, dearer - back);
                self.cheaper = (self.cheaper - dearer.abs()).max(0.0);
                self.grown = 1.0;
                self.step = FIRST_STEP;
            }
            (Verdict::Held, Some(prices)) => {
                let least = if busy < IDLE {
                    LARGEST_STEP
                } else {
                    FIRST_STEP
                };
                let could = PAUSES / busy.max(PAUSES / 2.0) - 1.0;
                let most = could.clamp(LARGEST_STEP, LARGEST_STEP_IDLE);
                let step = self.step.clamp(least, most);
                grow(prices, &mut self.cheaper, step);
                self.grown = 1.0;
                self.step = (step * 2.0).min(most);
            }
            (Verdict::Stuck, Some(prices)) if self.grown < MOST_GROWTH_STUCK => {
                grow(prices, &mut self.cheaper, self.step);
                self.grown *= 1.0 + self.step;
                self.step = (self.step * 2.0).min(LARGEST_STEP);
            }
            (Verdict::Paused, Some(prices)) if self.grown < MOST_GROWTH => {
                grow(prices, &mut self.cheaper, FIRST_STEP);
                self.grown *= 1.0 + FIRST_STEP;
            }
            _ => {}
        }
    }

    /// Takes in what was `done` in that interval of so many seconds, all of which passed through the device: whether the
    /// device has given way. Then the prices follow at once.
    pub fn gives_way(&mut self, verdict: Verdict, done: &Flow, seconds: f64) -> bool {
        let Some(prices) = self.prices.as_mut().filter(|prices| {
            verdict == Verdict::Saturated && done.is_some() && prices.cost(done) < GIVEN_WAY
        }) else {
            (self.little, self.done) = (0.0, Flow::default());
            return false;
        };
        self.little += seconds;
        self.done = self.done.plus(&done.times(seconds));
        let sure = self.little >= SURE;
        if sure {
            prices.learn(&self.done.times(1.0 / self.little), 1.0);
            (self.little, self.done) = (0.0, Flow::default());
        }
        sure
    }
}

/// Lets the device do more by this `step`: everything becomes `cheaper`.
fn grow(prices: &mut Prices, cheaper: &mut f64, step: f64) {
    prices.scale(1.0 / (1.0 + step));
    *cheaper += step.ln_1p();
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flow(megabytes: f64) -> Flow {
        Flow {
            wbytes: megabytes * 1e6,
            wios: megabytes * 16.0,
            ..Flow::default()
        }
    }

    fn known() -> TotalCredit {
        let mut total = TotalCredit::default();
        total.update(Verdict::Saturated, 1.0, &flow(60.0));
        total
    }

    #[test]
    fn what_an_interval_says() {
        use Verdict::{Held, Paused, Saturated, Silent, Stuck};
        for (busy, waiting, fulfilled, expected) in [
            (1.0, true, None, Saturated),
            (1.0, true, Some(0.8), Saturated),
            (1.0, true, Some(1.0), Held),
            (0.5, true, Some(1.0), Held),
            (0.5, true, Some(0.5), Paused),
            (0.5, true, Some(0.92), Held),
            (0.9, true, Some(0.92), Paused),
            (0.2, true, Some(0.5), Stuck),
            (0.5, true, None, Silent),
            (1.0, false, Some(0.1), Silent),
            (0.1, false, Some(0.1), Silent),
        ] {
            let verdict = TotalCredit::judge(busy, waiting, fulfilled);
            assert_eq!(verdict, expected, "{busy} {waiting} {fulfilled:?}");
        }
    }

    #[test]
    fn a_dip_in_demand_is_no_dip_in_capacity() {
        let mut total = known();
        let before = total.prices();
        for _ in 0..100 {
            total.update(Verdict::Silent, 1.0, &flow(1.0));
        }
        assert_eq!(total.prices(), before);
    }

    #[test]
    fn it_grows_until_the_device_is_full_again_and_never_beyond_all_measure() {
        let mut total = known();
        for _ in 0..1000 {
            total.update(Verdict::Paused, 0.7, &flow(60.0));
        }
        let cost = total.prices().unwrap().cost(&flow(60.0));
        assert!((0.48..0.52).contains(&cost), "{cost}");
        for _ in 0..10 {
            total.update(Verdict::Held, 0.9, &flow(60.0));
        }
        let cost = total.prices().unwrap().cost(&flow(60.0));
        assert!(cost < 0.3, "{cost}");
        for _ in 0..12 {
            total.update(Verdict::Saturated, 1.0, &flow(120.0));
        }
        let cost = total.prices().unwrap().cost(&flow(120.0));
        assert!((0.98..1.02).contains(&cost), "{cost}");
    }

    #[test]
    fn what_became_cheaper_and_was_wrong_becomes_dearer_for_everybody() {
        // Next to nothing is read, among much that is written.
        let flow = Flow {
            rbytes: 0.6e6,
            rios: 10.0,
            ..flow(60.0)
        };
        let mut total = TotalCredit::default();
        total.update(Verdict::Saturated, 1.0, &flow);
        let before = total.prices().unwrap().read().0;
        for _ in 0..20 {
            total.update(Verdict::Held, 0.9, &flow);
            total.update(Verdict::Held, 0.9, &flow);
            for _ in 0..20 {
                total.update(Verdict::Saturated, 1.0, &flow);
            }
        }
        let prices = total.prices().unwrap();
        assert!((0.98..1.02).contains(&prices.cost(&flow)), "{prices:?}");
        let now = prices.read().0;
        assert!((0.9..1.1).contains(&(now / before)), "{before} {now}");
    }

    #[test]
    fn a_device_that_does_little_for_those_who_are_held_is_found_out_soon() {
        let mut total = known();
        for _ in 0..4 {
            total.update(Verdict::Held, 0.1, &flow(60.0));
        }
        let cost = total.prices().unwrap().cost(&flow(60.0));
        assert!((0.25..0.35).contains(&cost), "{cost}");
        // Once it has something to do, in small steps again.
        total.update(Verdict::Held, 0.9, &flow(60.0));
        let then = total.prices().unwrap().cost(&flow(60.0));
        assert!(then > 0.9 * cost, "{cost} {then}");
    }

    #[test]
    fn a_device_that_gives_way_is_believed_once_it_is_sure() {
        let mut total = known();
        assert!(!total.gives_way(Verdict::Saturated, &flow(4.0), 0.25));
        // One interval says little, and so does one that was held or in which nothing was done.
        assert!(!total.gives_way(Verdict::Held, &flow(4.0), 0.25));
        assert!(!total.gives_way(Verdict::Saturated, &flow(4.0), 0.25));
        assert!(!total.gives_way(Verdict::Saturated, &Flow::default(), 0.25));
        assert!(!total.gives_way(Verdict::Saturated, &flow(40.0), 9.0));
        assert_eq!(total.prices(), known().prices());
        assert!(!total.gives_way(Verdict::Saturated, &flow(4.0), 0.25));
        assert!(total.gives_way(Verdict::Saturated, &flow(8.0), 0.25));
        let cost = total.prices().unwrap().cost(&flow(6.0));
        assert!((0.9..1.1).contains(&cost), "{cost}");
    }
}
