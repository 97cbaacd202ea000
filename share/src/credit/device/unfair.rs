//! Whether there is anything to correct. Left alone, a device serves those who wait for it about equally: where their
//! shares are equal, limits would cost and bring nothing, unless one of them takes more than the others.

use super::allow::divided;
use super::{CreditLoop, Interval, Observed};
use crate::{Demand, Tree};

/// Shares are equal if none is larger than another by more than this factor.
const EQUAL: f64 = 1.25;
/// Who gets less than its part by no more than this is not short of anything: no two containers get quite the same.
const SHORT: f64 = 0.2;
/// Whoever has been short, beyond that, of so many seconds' worth of its part is treated unfairly. It is a cumulative
/// sum, so what one gets in bursts is no reason.
const ENOUGH: f64 = 1.5;

impl CreditLoop {
    /// Takes in an interval: whether those who wait differ in their shares, or one of them is short of its part. The
    /// second is taken for granted for a while, since it cannot be seen while limits are there.
    pub(super) fn unfair(
        &mut self,
        tree: &Tree<Demand>,
        interval: Interval,
        waiting: &[&Observed],
    ) -> bool {
        // Alone, one has all, whatever the tree: the usual case, and dividing costs as many steps as there are tenants.
        let shares = match waiting {
            [] | [_] => vec![1.0; waiting.len()],
            _ => divided(tree, 1.0, waiting, |_| 1.0),
        };
        let largest = shares.iter().copied().fold(0.0, f64::max);
        let unequal = shares.iter().any(|share| share * EQUAL < largest);
        let got = |tenant: &Observed| tenant.application.unwrap_or_else(|| tenant.flow.bytes());
        let all: f64 = waiting.iter().map(|tenant| got(tenant)).sum();
        let whole: f64 = shares.iter().sum();
        let mut found = false;
        for (tenant, share) in waiting.iter().zip(&shares) {
            let ideal = all * share / whole;
            if ideal > 0.0 {
                let short = (1.0 - SHORT - got(tenant) / ideal).max(-1.0) * interval.seconds;
                let state = self.states.entry(tenant.id).or_default();
                state.short = (state.short + short).max(0.0);
                found |= state.short >= ENOUGH;
            }
        }
        if self.engaged {
            self.states.values_mut().for_each(|state| state.short = 0.0);
        }
        if !self.engaged || self.unfair.holds() {
            self.unfair.step(found, interval.seconds);
        }
        unequal || self.unfair.holds()
    }
}
