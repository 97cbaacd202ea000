//! The error of a pool's curve, against exact simulation of the same accesses.

use super::{Access, PoolCurve, Sampled};
use crate::block::Key;
use crate::testing::{Random, Zipf};
use std::cell::Cell;
use std::collections::{HashMap, VecDeque};
use std::time::Duration;
use traces::{blocks, cloudphysics, errors, number, stack_distances};

#[path = "../../../../share/tests/traces/mod.rs"]
mod traces;

/// What happened before fades to nothing.
const LONG: Duration = Duration::from_secs(6000);

/// The curve of the last half of a trace of accesses, in blocks.
fn sampled(
    accesses: &[(u64, Access)],
    seed: u64,
    max_blocks: u64,
    min_shift: u32,
) -> Vec<(f64, f64)> {
    let curve = PoolCurve::with_min_shift(min_shift);
    curve.set_size(max_blocks, max_blocks / 8);
    let gets = Cell::new(0);
    for (n, (block, how)) in accesses.iter().enumerate() {
        if n == accesses.len() / 2 {
            curve.make_older(LONG);
        }
        if *how != Access::Put {
            gets.set(gets.get() + 1);
        }
        // Seeds that differ in all bits: those that differ in few sample nearly the same blocks.
        let hash = Key::from_raw(*block).hash(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        curve.access(hash, *how, || gets.get(), max_blocks);
    }
    curve.steps()
}

/// Between two points by a straight line.
fn miss_ratio(steps: &[(f64, f64)], size: f64) -> f64 {
    let next = steps.partition_point(|(at, _)| *at < size);
    let Some((high, after)) = steps.get(next) else {
        return steps[steps.len() - 1].1;
    };
    match next.checked_sub(1).map(|before| steps[before]) {
        Some((low, before)) => before + (after - before) * (size - low) / (high - low),
        None => *after,
    }
}

/// A set of blocks that are used alike, and get this part of the accesses, beside many more that are used seldom.
fn hot_beside_cold(hot: u64, cold: u64, part: f64) -> Vec<u64> {
    let mut random = Random::new(11);
    let most = 1_u64 << 31;
    let draw = |_| {
        let drawn = f64::from(u32::try_from(random.below(most)).unwrap());
        if drawn < part * f64::from(1_u32 << 31) {
            random.below(hot)
        } else {
            hot + random.below(cold)
        }
    };
    (0..500_000).map(draw).collect()
}

/// The mean absolute error over 40 sizes that grow by the same factor, from 64 blocks to all there are: a small set counts
/// as much as a large one.
fn error_by_octaves(trace: &[u64], distances: &[Option<usize>], seed: u64) -> f64 {
    let largest = blocks(distances);
    let late = &distances[distances.len() / 2..];
    let mut sorted: Vec<usize> = late.iter().flatten().copied().collect();
    sorted.sort_unstable();
    let accesses: Vec<_> = trace.iter().map(|block| (*block, Access::Read)).collect();
    let most = u64::try_from(largest).unwrap();
    let steps = sampled(&accesses, seed, most, PoolCurve::MIN_SHIFT);
    let errors = (0..40_u32).map(|n| {
        let size = 64.0 * (number(largest) / 64.0).powf(f64::from(n) / 39.0);
        let hits = sorted.partition_point(|distance| number(*distance) <= size);
        let exact = 1.0 - number(hits) / number(late.len());
        (miss_ratio(&steps, size) - exact).abs()
    });
    errors.sum::<f64>() / 40.0
}

#[test]
fn a_small_set_beside_many_blocks_is_not_lost_in_the_sample() {
    for (hot, cold, part) in [
        (200, 50_000, 0.5),
        (1000, 100_000, 0.8),
        (4000, 100_000, 0.6),
    ] {
        let trace = hot_beside_cold(hot, cold, part);
        let distances = stack_distances(&trace);
        let errors = (1..22).map(|seed| error_by_octaves(&trace, &distances, seed));
        let mut errors: Vec<f64> = errors.collect();
        errors.sort_by(f64::total_cmp);
        let (median, most) = (errors[10], errors[18]);
        println!("{hot} blocks beside {cold}: median {median:.4}, nine in ten {most:.4}");
        assert!(median <= 0.02 && most <= 0.08, "{hot}: {errors:?}");
    }
}

/// The mean absolute error over 40 sizes, in the last half of the trace.
fn error(trace: &[u64], seed: u64, min_shift: u32) -> f64 {
    let distances = stack_distances(trace);
    let largest = u64::try_from(blocks(&distances)).unwrap();
    let accesses: Vec<_> = trace.iter().map(|block| (*block, Access::Read)).collect();
    let steps = sampled(&accesses, seed, largest, min_shift);
    let errors = errors(&distances, |size| miss_ratio(&steps, number(size)));
    errors.iter().sum::<f64>() / 40.0
}

fn zipf(skew: f64, blocks: u64, accesses: usize) -> Vec<u64> {
    let zipf = Zipf::new(blocks, skew);
    let mut random = Random::new(7);
    let draw = |_| {
        let part =
            f64::from(u32::try_from(random.below(1 << 31)).unwrap()) / f64::from(1_u32 << 31);
        zipf.block(part)
    };
    (0..accesses).map(draw).collect()
}

#[test]
fn the_error_of_a_pools_curve_is_small() {
    let traces = [
        ("cloudphysics", cloudphysics(4096)),
        ("zipf 0.7", zipf(0.7, 40_000, 500_000)),
        ("zipf 0.9", zipf(0.9, 40_000, 500_000)),
        ("zipf 1.2", zipf(1.2, 40_000, 500_000)),
    ];
    for (name, trace) in traces {
        for min_shift in [0, PoolCurve::MIN_SHIFT] {
            let errors = (1..22).map(|seed| error(&trace, seed, min_shift));
            let mut errors: Vec<f64> = errors.collect();
            errors.sort_by(f64::total_cmp);
            let most = 1 << min_shift;
            let (median, worst) = (errors[10], errors[20]);
            println!("{name}, at most one in {most}: median {median:.4}, worst {worst:.4}");
            assert!(median <= 0.02, "{name}: {errors:?}");
        }
    }
}

#[test]
fn a_rate_is_what_came_in_a_second_however_long_ago_it_began() {
    for (seconds, gets, expected) in [(60, 600, 10.0), (10, 100, 10.0), (600, 6000, 10.0)] {
        let pool = Sampled::new(0, 1000);
        let now = pool.begun + Duration::from_secs(seconds);
        let found = pool.rate(1000 + gets, now);
        assert!((found - expected).abs() < 0.01, "{seconds} s: {found}");
    }
    let mut pool = Sampled::new(0, 0);
    pool.begun -= Duration::from_secs(300);
    pool.at -= Duration::from_secs(300);
    pool.sampler.access(1);
    pool.update(3000, 100, 0);
    let minute_later = pool.rate(3000, pool.at + Duration::from_secs(60));
    assert!(minute_later < pool.rate(3000, pool.at) * 0.6, "it is idle");
}

/// An exclusive cache behind a guest's LRU cache: what it would hit, by simulation, and by the curve of put-to-get times.
#[test]
fn put_to_get_times_foretell_an_exclusive_cache() {
    const GUEST: usize = 2000;
    let trace = zipf(0.7, 20_000, 300_000);
    let mut guest: VecDeque<u64> = VecDeque::new();
    let mut accesses = Vec::new();
    for block in trace {
        if let Some(at) = guest.iter().position(|held| *held == block) {
            guest.remove(at);
        } else {
            accesses.push((block, Access::Take));
        }
        guest.push_back(block);
        if guest.len() > GUEST {
            accesses.push((guest.pop_front().unwrap(), Access::Put));
        }
    }
    for (size, min_shift) in [1000, 4000, 8000, 12_000]
        .into_iter()
        .flat_map(|s| [(s, 0), (s, PoolCurve::MIN_SHIFT)])
    {
        let steps = sampled(&accesses, 3, 20_000, min_shift);
        // The paper's FIFO: a put goes in, a hit comes out.
        let mut order: VecDeque<(u64, usize)> = VecDeque::new();
        let mut held: HashMap<u64, usize> = HashMap::new();
        let (mut gets, mut misses) = (0_usize, 0_usize);
        for (n, (block, how)) in accesses.iter().enumerate() {
            if *how == Access::Put {
                held.insert(*block, n);
                order.push_back((*block, n));
                while held.len() > size {
                    let (oldest, at) = order.pop_front().unwrap();
                    if held.get(&oldest) == Some(&at) {
                        held.remove(&oldest);
                    }
                }
            } else {
                let hit = held.remove(block).is_some();
                if n >= accesses.len() / 2 {
                    gets += 1;
                    misses += usize::from(!hit);
                }
            }
        }
        let exact = number(misses) / number(gets);
        let found = miss_ratio(&steps, number(size));
        println!(
            "{size} blocks, at most one in {}: foretold {found:.3}, exact {exact:.3}",
            1 << min_shift
        );
        // At the least rate there are some 30 blocks of a cache of 1,000.
        let most = if min_shift == 0 { 0.03 } else { 0.06 };
        assert!((found - exact).abs() <= most, "{size}: {found} {exact}");
    }
}
