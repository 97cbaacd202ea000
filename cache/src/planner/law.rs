//! The control law: where weights go from one period to the next.

use super::candidate::Candidate;
use super::goal::{Goal, best, hits_of, kept};
use super::measured::{Counted, Measured};
use super::target::Target;
use super::weights::weights;
use crate::ids::PoolId;
use justitia_api::CurveStatus;
use justitia_share::Fraction;
use justitia_share::num::{to_f64, to_u64};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Weights move so often. Curves have a half-life of a minute: what moves much faster follows chance.
pub(crate) const PERIOD: Duration = Duration::from_secs(10);

/// A pool's size moves by at most this part of what is divided, in a period: from one end to the other in 100 s.
const STEP: f64 = 0.1;

/// Another division is aimed at when it has so many more hits, of all gets of the pools without target; less is within
/// what curves err by.
const MIN_GAIN: f64 = 0.01;

/// Each other division doubles what the next one has to have more, up to so many times: pools that would go to and fro
/// lose more than either division has.
const MAX_GAIN_FACTOR: f64 = 16.0;

/// A division counts so much less in each period after it: half after four minutes.
const CHANGES_KEPT: f64 = 0.97;

/// A pool as the planner sees it, in one store.
#[derive(Clone, Debug)]
pub(crate) struct PoolView {
    pub(crate) id: PoolId,
    /// The weight that was declared, and the one that it has now.
    pub(crate) declared: u64,
    pub(crate) weight: u64,
    /// What it holds in the store, bytes.
    pub(crate) holds: u64,
    /// Gets and hits so far.
    pub(crate) gets: u64,
    pub(crate) hits: u64,
    /// Reads of the disk so far, and how long they took together, microseconds.
    pub(crate) reads: u64,
    pub(crate) read_us: u64,
    /// By its size in the store.
    pub(crate) curve: Option<CurveStatus>,
    pub(crate) target: Option<Target>,
    /// Its weight was set while weights were planned: it is left alone.
    pub(crate) pinned: bool,
}

#[cfg(test)]
impl PoolView {
    /// A pool with this curve, of which nothing was counted, with weight 100 and no target.
    pub(super) fn new(index: u32, curve: CurveStatus) -> Self {
        Self {
            id: PoolId {
                index,
                generation: 1,
            },
            declared: 100,
            weight: 100,
            holds: 0,
            gets: 0,
            hits: 0,
            reads: 0,
            read_us: 0,
            curve: Some(curve),
            target: None,
            pinned: false,
        }
    }
}

/// How a pool is planned for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum PoolState {
    /// Its weight was set by hand since: the planner leaves it.
    SetByHand,
    /// It has no curve yet: it keeps the declared weight.
    NoCurve,
    /// It gets what brings the most hits to all.
    MostHits,
    /// It gets what its target needs.
    Target,
    /// Its target cannot be reached here, or not beside those that need less: it gets what brings the most hits to all.
    OutOfReach,
}

/// A pool, as it is planned for.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PlannedPool {
    /// Which.
    pub id: PoolId,
    /// How.
    pub state: PoolState,
    /// The weight that was declared.
    pub declared_weight: u64,
    /// The weight from now on.
    pub weight: u64,
    /// The size that it is to have in the end, bytes.
    pub goal_bytes: u64,
    /// What its target needs, bytes.
    pub needs_bytes: Option<u64>,
    /// The hit ratio that was measured last, 0 to 1.
    pub hit_ratio: Option<f64>,
}

/// What is to be done in one store of a VM.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Plan {
    /// The pools, in the order in which they were given.
    pub(crate) pools: Vec<PlannedPool>,
    /// Hits a second to expect of the pools without target: with the sizes of now, and in the end.
    pub(crate) expected_hits: [f64; 2],
    /// Other sizes are aimed at than in the period before.
    pub(crate) is_new: bool,
}

/// Plans the weights of one VM's pools in one store.
#[derive(Debug, Default)]
pub(crate) struct Planner {
    measured: BTreeMap<PoolId, Measured>,
    /// The parts of what is divided that the pools are to have.
    goal: BTreeMap<PoolId, f64>,
    /// Divisions that were chosen lately for having more hits.
    changes: f64,
    /// Pools whose targets were out of reach.
    out_of_reach: BTreeSet<PoolId>,
}

impl Planner {
    /// The plan for the next period. `part` is what the VM has of the store, bytes.
    pub(crate) fn step(&mut self, part: u64, pools: &[PoolView]) -> Plan {
        self.measure(pools);
        let planned: Vec<&PoolView> = pools.iter().filter(|pool| is_planned(pool)).collect();
        let declared: u64 = planned.iter().map(|pool| pool.declared).sum();
        let now: u64 = planned.iter().map(|pool| pool.weight).sum();
        let others = pools.iter().filter(|pool| !is_planned(pool));
        let all = declared + others.map(|pool| pool.weight).sum::<u64>();
        let part = to_f64(part) * to_f64(declared) / to_f64(all.max(1));
        if part < 1.0 {
            return self.unchanged(pools);
        }
        let sizes: Vec<f64> = planned
            .iter()
            .map(|pool| part * to_f64(pool.weight) / to_f64(now.max(1)))
            .collect();
        let candidates = self.candidates(part / to_f64(declared.max(1)), &planned);
        let (goal, is_new) = self.choose(part, &planned, &candidates, &sizes);
        let moved = moved(part, &sizes, &goal.sizes);
        let needed = moved.iter().zip(&goal.needs);
        let needed: Vec<_> = needed.map(|(size, need)| (*size, need.is_some())).collect();
        let weights = weights(declared, &needed);
        let expected = [hits_of(&sizes, &goal.needs, &candidates), goal.hits];
        self.goal = planned
            .iter()
            .zip(&goal.sizes)
            .map(|(pool, size)| (pool.id, size / part.max(1.0)))
            .collect();
        self.out_of_reach = planned
            .iter()
            .zip(candidates.iter().zip(&goal.needs))
            .filter(|(_, (pool, need))| pool.target.is_some() && need.is_none())
            .map(|(pool, _)| pool.id)
            .collect();
        let mut found = weights.into_iter().zip(goal.sizes.iter().zip(&goal.needs));
        let planned = |pool: &PoolView| {
            let own = is_planned(pool).then(|| found.next()).flatten();
            self.planned_pool(pool, own)
        };
        Plan {
            pools: pools.iter().map(planned).collect(),
            expected_hits: expected,
            is_new,
        }
    }

    /// Where there is nothing to divide (a store that failed or was taken away), weights stay as they are.
    fn unchanged(&self, pools: &[PoolView]) -> Plan {
        Plan {
            pools: pools
                .iter()
                .map(|pool| self.planned_pool(pool, None))
                .collect(),
            ..Plan::default()
        }
    }

    fn measure(&mut self, pools: &[PoolView]) {
        self.measured
            .retain(|id, _| pools.iter().any(|pool| pool.id == *id));
        for pool in pools {
            let now = Counted {
                gets: pool.gets,
                hits: pool.hits,
                holds: to_f64(pool.holds),
                reads: pool.reads,
                read_us: pool.read_us,
            };
            let measured = self.measured.entry(pool.id).or_default();
            measured.update(now, pool.curve.as_ref());
        }
    }

    /// `unit` is what a declared weight of 1 gives, bytes.
    fn candidates<'a>(&self, unit: f64, pools: &[&'a PoolView]) -> Vec<Candidate<'a>> {
        let candidate = |pool: &&'a PoolView| {
            let measured = self.measured.get(&pool.id).copied().unwrap_or_default();
            let target = pool.target.and_then(|t| t.hit_ratio(measured.miss_us));
            Some(Candidate {
                curve: pool.curve.as_ref()?,
                correction: measured.correction,
                declared: to_f64(pool.declared) * unit,
                target: target.map(Fraction::get),
                was_out_of_reach: self.out_of_reach.contains(&pool.id),
            })
        };
        pools.iter().filter_map(candidate).collect()
    }

    /// The sizes to aim at, and whether they are others than before: the best ones, unless those aimed at so far (or those
    /// of now), with what targets need, have nearly as many hits.
    fn choose(
        &mut self,
        part: f64,
        pools: &[&PoolView],
        candidates: &[Candidate<'_>],
        sizes: &[f64],
    ) -> (Goal, bool) {
        let best = best(part, candidates);
        let parts: Option<Vec<f64>> = pools
            .iter()
            .map(|pool| self.goal.get(&pool.id).map(|of| of * part))
            .collect();
        let same_pools = self.goal.len() == pools.len();
        let aimed = parts
            .filter(|_| same_pools)
            .unwrap_or_else(|| sizes.to_vec());
        let needs = &best.needs;
        let (sizes, changed) = kept(part, candidates, needs, &aimed);
        let hits = hits_of(&sizes, needs, candidates);
        let free = candidates.iter().zip(needs).filter(|(_, n)| n.is_none());
        let gets: f64 = free.map(|(pool, _)| pool.curve.accesses).sum();
        let min_gain = MIN_GAIN * self.changes.exp2().min(MAX_GAIN_FACTOR);
        self.changes *= CHANGES_KEPT;
        if best.hits > min_gain.mul_add(gets, hits) {
            self.changes += 1.0;
            return (best, true);
        }
        let needs = best.needs;
        (Goal { sizes, needs, hits }, changed)
    }

    /// Is it known which hit ratio its target takes?
    fn is_known(&self, pool: &PoolView) -> bool {
        let miss_us = self.measured.get(&pool.id).and_then(|m| m.miss_us);
        let target = pool.target.and_then(|target| target.hit_ratio(miss_us));
        target.is_some()
    }

    fn planned_pool(
        &self,
        pool: &PoolView,
        own: Option<(u64, (&f64, &Option<f64>))>,
    ) -> PlannedPool {
        let (weight, goal, needs) = match own {
            Some((weight, (goal, needs))) => (weight, *goal, *needs),
            None => (pool.weight, 0.0, None),
        };
        let state = if pool.pinned {
            PoolState::SetByHand
        } else if pool.curve.is_none() {
            PoolState::NoCurve
        } else if needs.is_some() {
            PoolState::Target
        } else if self.is_known(pool) {
            PoolState::OutOfReach
        } else {
            PoolState::MostHits
        };
        PlannedPool {
            id: pool.id,
            state,
            declared_weight: pool.declared,
            weight,
            goal_bytes: to_u64(goal),
            needs_bytes: needs.map(to_u64),
            hit_ratio: self.measured.get(&pool.id).and_then(|m| m.hit_ratio),
        }
    }
}

fn is_planned(pool: &PoolView) -> bool {
    pool.curve.is_some() && !pool.pinned
}

/// All sizes on their way to the goal, by the same part of it, so that none moves further than a step.
fn moved(part: f64, sizes: &[f64], goal: &[f64]) -> Vec<f64> {
    let ways = || sizes.iter().zip(goal);
    let furthest = ways().map(|(size, goal)| (goal - size).abs());
    let furthest = furthest.fold(0.0, f64::max);
    let of_the_way = (STEP * part / furthest.max(1.0)).min(1.0);
    ways()
        .map(|(size, goal)| of_the_way.mul_add(goal - size, *size))
        .collect()
}

#[cfg(test)]
mod tests;
