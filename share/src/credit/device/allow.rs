//! From credits to limits: distributed by weight, corrected by what applications get.

use super::super::distribute::{demand, distribute};
use super::super::limit::{self, Limits};
use super::super::predict::Predict;
use super::super::price::Prices;
use super::super::total::Verdict;
use super::notice::{ACTIVE, SETTLED, slowness};
use super::observed::spends;
use super::{Allowance, BUFFERED, CreditLoop, Interval, LATELY, Observed, PATIENT};
use crate::credit::carry::Residual;
use crate::num;
use crate::{Demand, Tree};

/// What others wait for may be behind a tenant's pages under writeback (room that a journal keeps for them; a commit, in
/// ordered mode): meanwhile its limit lets them through within so many seconds, or in the time that the device needs for
/// all tenants' together, and lets it write no less than what its applications are to get, so that room decides. A commit
/// ends with the last of them; to let the lightest's through before the others' would only give it more than its part. Right after a step a
/// tenant may have more dirty pages than it will have room for, and until those are written its writers stand still: all
/// of them within so many seconds, more if it is corrected down to less.
const DRAIN: f64 = 1.0;
/// Where all stand still for that, the device with them, it is to be over within so many seconds.
const QUICKLY: f64 = 0.3;
/// Or at the latest within so many, whatever the device is thought to need.
const AT_LATEST: f64 = 2.0;
/// For each second that the queue is too long, so much less of the device is handed out, up to [`MOST_EMPTYING`].
const EMPTYING: f64 = 0.5;
/// The most of the device that is not handed out because its queue is too long, 0 to 1.
pub const MOST_EMPTYING: f64 = 0.1;
/// In steps of so much.
const EMPTYING_STEP: f64 = 0.05;
/// A prediction is exceeded by this much before it holds its tenant.
const HEADROOM: f64 = 1.25;
/// A share that moves by more than this part is a step; one of many that comes or goes is none.
const STEP: f64 = 0.3;

impl CreditLoop {
    /// Distributes, corrects, and turns credits into limits.
    pub(super) fn allow(
        &mut self,
        tree: &Tree<Demand>,
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
        let shares = if demands.iter().all(Option::is_none) {
            parts.clone()
        } else {
            divided(tree, whole, &active, |_| whole)
        };
        let factors = self.correct(interval, &active, &parts, &shares);

        let stands = self.standstill.holds();
        // Beside one whose room decides, a limit would only make others' pages wait: room decides for all, or for none.
        let free = self.states.values().any(|state| state.free);
        let lifts = stands || free || self.coupled.holds();
        let behind: f64 = active
            .iter()
            .map(|tenant| prices.cost_to_write(tenant.writeback, &self.state(tenant.id).mix))
            .sum();
        let within = through_within(behind, stands);
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
            let own = limit::limits(prices, &state.mix, spends(part, residual));
            let full = tenant.dirty >= BUFFERED
                && (state.settled < SETTLED || state.behind_itself.holds());
            let limits = if lifts || full {
                let drained = if full {
                    num::to_f64(tenant.dirty) * factor.min(1.0) / DRAIN
                } else {
                    0.0
                };
                let drained = drained.max(num::to_f64(tenant.writeback) / within);
                let ideal = state.ideal * factor;
                own.at_least(drained.max(ideal), ideal)
            } else {
                own
            };
            state.lifted = limits != own;
            state.free = tenant.dirty >= BUFFERED && state.by_memory(share.max(parts[i]));
            let limits = if state.free {
                limits.without_writes()
            } else {
                limits
            };
            state.coupled = if lifts && state.lifted {
                LATELY
            } else {
                state.coupled - interval.seconds
            };
            state.stood += interval.seconds;
            let deadband = if state.stood < self.settings.hold {
                self.settings.hasty
            } else {
                self.settings.deadband
            };
            let standing = match state.standing {
                Some((part, standing)) if limits.near(&standing, deadband) => (part, standing),
                _ => {
                    state.stood = 0.0;
                    (part, limits)
                }
            };
            state.standing = tenant.limitable.then_some(standing);
            allowances.push(Allowance {
                id: tenant.id,
                part,
                share,
                demand,
                correction: factor,
                residual,
                lifted: state.lifted || state.free,
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
                (state.lifted, state.free) = (false, false);
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
        let stuck = self.verdict == Verdict::Stuck;
        for ((tenant, part), share) in active.iter().zip(parts).zip(shares) {
            let state = self.states.entry(tenant.id).or_default();
            // After a step, averages and limits need a moment to show what it has done.
            if (share - state.share).abs() > STEP * state.share {
                (state.share, state.settled) = (*share, 0.0);
                state.correction.step();
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
                let ideal = got * part / entitled;
                state.ideal = ideal;
                // While all wait for one, or limits are far above what the device does, what each gets is no measure
                // of its part; and who has the least limit that there is cannot be given less.
                let settled = state.settled.min(self.steady) >= SETTLED
                    && state.watched >= 2.0 * slowness(tenant);
                let got = state.application;
                let lowest =
                    got > ideal && state.standing.is_some_and(|(_, limits)| limits.lowest());
                if !stuck && settled && !state.drains() && !lowest {
                    let (acts, served) = (state.acts(), state.served(ideal));
                    let seconds = interval.seconds;
                    state.correction.correct(acts, served, got, ideal, seconds);
                }
                before += part;
                after += part * state.correction.factor();
            } else {
                state.correction.fade(interval.seconds);
                state.ideal = 0.0;
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

/// Within how many seconds what others wait for is to be through: so long a time of the device it needs; whether all,
/// and the device, stand still for it.
fn through_within(needs: f64, stands: bool) -> f64 {
    needs.clamp(if stands { QUICKLY } else { DRAIN }, AT_LATEST)
}

/// `whole` divided in the tree, where only the active tenants demand anything. Indexed like `active`.
pub(super) fn divided(
    tree: &Tree<Demand>,
    whole: f64,
    active: &[&Observed],
    wants: impl Fn(usize) -> f64,
) -> Vec<f64> {
    let mut tree = tree.map(|node, demand| Demand {
        minimum: 0,
        in_use: 0,
        working_set: 0,
        total: if tree.is_leaf(node) { 0 } else { u64::MAX },
        ..*demand
    });
    for (i, tenant) in active.iter().enumerate() {
        tree[tenant.node].total = demand(wants(i));
    }
    let parts = distribute(&tree, whole);
    active.iter().map(|t| parts[t.node.index()]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_others_wait_for_is_through_as_soon_as_the_device_can_but_soon() {
        for (needs, stands, within) in [
            (0.1, false, 1.0),
            (0.1, true, 0.3),
            (0.7, true, 0.7),
            (1.5, false, 1.5),
            (60.0, false, 2.0),
            (60.0, true, 2.0),
        ] {
            let found = through_within(needs, stands);
            assert!((found - within).abs() < 1e-9, "{needs} {stands}: {found}");
        }
    }
}
