//! The control law against simulated pools: targets reached, and the hits of the others against the best static division.
//!
//! What the planner sees of a pool is off, as real curves are: sizes to an eighth, hit ratios by some points, always and by
//! chance. A pool fills by its misses only.

use super::division::most_hits;
use super::{Planner, PoolView, Target};
use crate::bench::Random;
use justitia_api::CurveStatus;
use justitia_share::num::{to_f64, to_u64};

/// What is divided, bytes.
const PART: u64 = 256 << 20;
const BLOCK: f64 = 4096.0;
/// Units of the search for the best static division.
const GRID: usize = 1000;
/// Ten minutes.
const PERIODS: usize = 60;
/// The last of them are judged.
const JUDGED: usize = 12;

#[derive(Clone, Debug)]
enum Kind {
    /// Hits grow less and less until all fits.
    Concave(f64),
    /// No hit until all fits.
    Loop,
    /// Half of either.
    Both(f64),
}

#[derive(Clone, Debug)]
struct Pool {
    kind: Kind,
    gets: f64,
    /// Bytes, and the hit ratio when they fit.
    working_set: f64,
    most: f64,
    /// What is wrong with its curve: a factor of sizes, and hits of a get.
    stretch: f64,
    shift: f64,
}

/// -1 to 1.
fn both(random: &mut Random) -> f64 {
    2.0f64.mul_add(random.part(), -1.0)
}

impl Pool {
    fn random(random: &mut Random) -> Self {
        let kind = match random.below(3) {
            0 => Kind::Loop,
            1 => Kind::Both(5.0f64.mul_add(random.part(), 1.0)),
            _ => Kind::Concave(5.0f64.mul_add(random.part(), 1.0)),
        };
        Self {
            kind,
            gets: 10.0f64.powf(1.5f64.mul_add(random.part(), 2.5)),
            working_set: to_f64(PART) * 1.2f64.mul_add(random.part(), 0.05),
            most: 0.4f64.mul_add(random.part(), 0.6),
            stretch: (both(random) / 16.0).exp2(),
            shift: 0.03 * both(random),
        }
    }

    fn hit_ratio(&self, size: f64) -> f64 {
        let filled = (size / self.working_set).min(1.0);
        let concave = |power: f64| 1.0 - (1.0 - filled).powf(power);
        let whole = if filled < 1.0 { 0.0 } else { 1.0 };
        self.most
            * match self.kind {
                Kind::Concave(power) => concave(power),
                Kind::Loop => whole,
                Kind::Both(power) => f64::midpoint(concave(power), whole),
            }
    }

    /// The curve as a histogram with eight buckets an octave shows it.
    fn curve(&self, random: &mut Random) -> CurveStatus {
        let chance = (0.005 * both(random)).exp2();
        let lower = self.shift + 0.003 * both(random);
        let mut points = vec![(0, 1.0)];
        let mut size = BLOCK * 16.0;
        while size < 4.0 * to_f64(PART) {
            let hits = self.hit_ratio(size * self.stretch * chance) + lower;
            points.push((to_u64(size), 1.0 - hits.clamp(0.0, 1.0)));
            size *= 0.125f64.exp2();
        }
        CurveStatus {
            accesses: self.gets,
            points,
        }
    }
}

/// A VM of pools, the first of which has a target.
struct Vm {
    pools: Vec<Pool>,
    views: Vec<PoolView>,
    /// The hit ratio that the first is to have.
    target: f64,
}

impl Vm {
    /// `None` when the first pool cannot have a target.
    fn random(random: &mut Random) -> Option<Self> {
        let count = 2 + random.below(5);
        let pools: Vec<Pool> = (0..count).map(|_| Pool::random(random)).collect();
        let size = to_f64(PART) * 0.55f64.mul_add(random.part(), 0.05);
        let percent = to_u64((pools.first()?.hit_ratio(size) * 100.0).floor());
        let percent = u8::try_from(percent).ok().filter(|percent| *percent >= 5)?;
        let views = (0..).zip(&pools).map(|(index, pool)| PoolView {
            target: (index == 0).then_some(Target::HitPercent(percent)),
            ..PoolView::new(index, pool.curve(random))
        });
        Some(Self {
            views: views.collect(),
            pools,
            target: f64::from(percent) / 100.0,
        })
    }

    /// One period. Returns the hit ratio of the first, and the hits a second of the others.
    fn period(&mut self, planner: &mut Planner, random: &mut Random) -> (f64, f64) {
        let weights: u64 = self.views.iter().map(|view| view.weight).sum();
        let mut others = 0.0;
        let mut first = 0.0;
        for (n, (pool, view)) in self.pools.iter().zip(&mut self.views).enumerate() {
            let share = to_f64(PART) * to_f64(view.weight) / to_f64(weights);
            let useful = if pool.most > 0.99 {
                pool.working_set
            } else {
                share
            };
            let ratio = pool.hit_ratio(to_f64(view.holds));
            let fills = pool.gets * 10.0 * (1.0 - ratio) * BLOCK;
            let holds = (to_f64(view.holds) + fills).min(share).min(useful);
            let ratio = pool.hit_ratio(holds);
            let gets = pool.gets * 10.0;
            let chance = (ratio * (1.0 - ratio) * gets).sqrt() * 1.7 * both(random);
            view.holds = to_u64(holds);
            view.gets += to_u64(gets);
            view.hits += to_u64((ratio * gets + chance).clamp(0.0, gets));
            view.curve = Some(pool.curve(random));
            if n == 0 {
                first = ratio;
            } else {
                others += ratio * pool.gets;
            }
        }
        let plan = planner.step(PART, &self.views);
        for (view, planned) in self.views.iter_mut().zip(&plan.pools) {
            view.weight = planned.weight;
        }
        (first, others)
    }

    /// Hits a second of all but the first, with the best static division of so much of the part that gives the first what
    /// its target needs.
    fn best(&self, of: f64) -> f64 {
        let unit = to_f64(PART) * of / 1000.0;
        let sizes: Vec<f64> = (0..=GRID)
            .map(|n| unit * f64::from(u32::try_from(n).unwrap()))
            .collect();
        let need = sizes
            .iter()
            .position(|size| self.pools[0].hit_ratio(*size) >= self.target);
        let rest = GRID - need.unwrap();
        let hits: Vec<Vec<f64>> = self.pools[1..]
            .iter()
            .map(|pool| {
                sizes[..=rest]
                    .iter()
                    .map(|size| pool.hit_ratio(*size) * pool.gets)
                    .collect()
            })
            .collect();
        let parts = most_hits(rest, &hits);
        hits.iter().zip(parts).map(|(hits, own)| hits[own]).sum()
    }
}

/// How far below its target the first pool of a random VM is in the end; and the hits of the others against the best static
/// divisions, of all and of 31 of 32 parts: a loop that fits only just is not found by a curve that is off by some per
/// cent. `None` when the VM can have no target, or the others no hits.
fn outcome(seed: u64) -> Option<(f64, [f64; 2])> {
    let mut random = Random::new(seed + 1);
    random.next();
    let mut vm = Vm::random(&mut random)?;
    let best = [1.0, 31.0 / 32.0].map(|of| vm.best(of));
    let mut planner = Planner::default();
    let runs: Vec<_> = (0..PERIODS)
        .map(|_| vm.period(&mut planner, &mut random))
        .collect();
    let judged = &runs[PERIODS - JUDGED..];
    let mean = |of: fn(&(f64, f64)) -> f64| {
        judged.iter().map(of).sum::<f64>() / to_f64(u64::try_from(JUDGED).unwrap())
    };
    let (first, others) = (mean(|run| run.0), mean(|run| run.1));
    let against = best.map(|best| if best > 0.0 { others / best } else { 1.0 });
    (best[0] > 0.0).then_some((vm.target - first, against))
}

#[test]
fn targets_are_reached_and_the_others_have_nearly_the_most_hits() {
    let seeds = std::env::var("SEEDS").map_or(150, |seeds| seeds.parse().unwrap());
    let found = (0..seeds).filter_map(|seed| Some((seed, outcome(seed)?)));
    let found: Vec<_> = found
        .map(|(seed, (short, ratios))| {
            if short > 0.02 {
                println!("seed {seed} is {short:.3} below its target");
            }
            (short, ratios)
        })
        .collect();
    let all = found.len();
    let reached = found.iter().filter(|(short, _)| *short <= 0.02).count();
    let furthest = found.iter().map(|(short, _)| *short).fold(0.0, f64::max);
    println!("{all} VMs: {reached} targets reached within 2 points, furthest below {furthest:.3}");
    for (which, least) in [(0, 0.88), (1, 0.95)] {
        let mut ratios: Vec<f64> = found.iter().map(|(_, ratios)| ratios[which]).collect();
        ratios.sort_by(f64::total_cmp);
        let good = ratios.iter().filter(|ratio| **ratio >= 0.95).count();
        println!(
            "others' hits against the best static division: median {:.3}, {good} at least 0.95, twentieth {:.3}, lowest {:.3}",
            ratios[all / 2],
            ratios[all / 20],
            ratios[0]
        );
        assert!(
            to_f64(u64::try_from(good).unwrap()) >= least * to_f64(u64::try_from(all).unwrap()),
            "{good} of {all}"
        );
    }
    // All of 600 seeds, all but two of 1,200.
    assert!(reached * 100 >= all * 99, "{reached} of {all}");
}
