//! The error of curves from sampled reuse times, against exact simulation of the same accesses.

#![expect(
    clippy::unwrap_used,
    clippy::cast_precision_loss,
    reason = "tests say what is wrong by failing"
)]

mod curves;
mod traces;

use std::collections::HashMap;
use std::time::Duration;

use curves::{Random, View, hash, zipf};
use justitia_share::curve::{
    DecayedHistogram, DistanceSampler, MissRatioCurve, ReuseTimes, Sampler,
};
use traces::{blocks, cloudphysics, errors, stack_distances};

/// What happened before fades to nothing.
const LONG: Duration = Duration::from_secs(1 << 20);

/// The curve of the last half of a trace, as the agent would have it with its choice of rate, in blocks; and the rate.
fn sampled(trace: &[u64], seed: u64, max_blocks: u64) -> (MissRatioCurve, u32) {
    let mut view = View::new(seed, max_blocks);
    let (first, last) = trace.split_at(trace.len() / 2);
    for (half, mut past) in [(first, Duration::ZERO), (last, LONG)] {
        for part in half.chunks(4096) {
            view.take(part.iter().copied(), past);
            past = Duration::ZERO;
        }
    }
    (view.curve(), view.sampler.shift())
}

/// Mean and largest absolute error over 40 sizes up to all blocks there are, in the last half of the trace, and the rate.
fn error(trace: &[u64], seed: u64) -> (f64, f64, u32) {
    let distances = stack_distances(trace);
    let (curve, shift) = sampled(trace, seed, blocks(&distances) as u64);
    let errors = errors(&distances, |size| curve.miss_ratio(size as u64).unwrap());
    let most = errors.iter().copied().fold(0.0, f64::max);
    (errors.iter().sum::<f64>() / 40.0, most, shift)
}

fn traces() -> Vec<(&'static str, Vec<u64>)> {
    let random = &mut Random(1);
    let hot: Vec<u64> = (0..150_000).map(|_| random.below(6400)).collect();
    let mixed = hot
        .iter()
        .zip(0..)
        .flat_map(|(hot, next)| [*hot, 1_000_000 + next])
        .collect();
    let scans = zipf(300_000, 20_000, 0.9, random);
    // Every now and then a scan over 8,000 blocks that are never used again.
    let scanned = scans.chunks(30_000).zip(1..).flat_map(|(part, n)| {
        let scan = (0..8000).map(move |i| 10_000_000 * n + i);
        part.iter().copied().chain(scan)
    });
    vec![
        ("cloudphysics, 4 KiB", cloudphysics(4096)),
        ("cloudphysics, 64 KiB", cloudphysics(65_536)),
        ("zipf 0.9", zipf(300_000, 20_000, 0.9, random)),
        ("zipf 1.2", zipf(300_000, 20_000, 1.2, random)),
        ("zipf 0.9 and scans", scanned.collect()),
        ("random", hot.clone()),
        ("hot and stream", mixed),
        ("loop", (0..200_000).map(|i| i % 6000).collect()),
        (
            "loop and small",
            (0..200_000)
                .map(|i| {
                    if i % 2 == 0 {
                        i / 2 % 3000
                    } else {
                        1_000_000 + i / 2 % 100
                    }
                })
                .collect(),
        ),
    ]
}

/// The largest median of the mean error, as the table in docs/results says. The agent's blocks are of 64 KiB: of small
/// ones there are so many that too few are looked at.
fn most_of(name: &str) -> f64 {
    if name.contains(" 4 KiB") { 0.05 } else { 0.035 }
}

#[test]
fn the_mean_error_is_small() {
    println!(
        "mean absolute error over 40 sizes, of 20 seeds: median, largest; and the largest error of any size"
    );
    for (name, trace) in traces() {
        let errors: Vec<(f64, f64, u32)> = (0..20).map(|seed| error(&trace, seed)).collect();
        let mut means: Vec<f64> = errors.iter().map(|(mean, ..)| *mean).collect();
        means.sort_by(f64::total_cmp);
        let (median, largest) = (means[10], means[19]);
        let most = errors.iter().map(|(_, most, _)| *most).fold(0.0, f64::max);
        let shift = errors[0].2;
        println!(
            "{name}: {median:.3}, {largest:.3}; {most:.2} (one block in {})",
            1 << shift
        );
        assert!(median <= most_of(name), "{name}");
        assert!(largest <= 0.1, "{name}");
    }
}

/// Of this trace with small blocks, curves from reuse times err however many blocks are looked at; those from reuse
/// distances do not, with few.
#[test]
fn where_accesses_are_uneven_distances_err_less_than_times() {
    const SHIFT: u32 = 6;
    const SETS: usize = 1024;
    let trace = cloudphysics(4096);
    let distances = stack_distances(&trace);
    let mean = |curve: &MissRatioCurve| {
        let errors = errors(&distances, |size| curve.miss_ratio(size as u64).unwrap());
        errors.iter().sum::<f64>() / 40.0
    };
    // Parts of the trace, and the time that passes before each: what was counted in the first half fades.
    let parts = || {
        let (first, last) = trace.split_at(trace.len() / 2);
        let begins = [Duration::ZERO, LONG];
        let halves = [first, last].into_iter().zip(begins);
        halves.flat_map(|(half, begins)| {
            let pasts = std::iter::once(begins).chain(std::iter::repeat(Duration::ZERO));
            half.chunks(16_384).zip(pasts)
        })
    };
    // All reuse times, none sampled.
    let (mut last, mut at) = (HashMap::new(), 0_u64);
    let mut all = DecayedHistogram::default();
    for (part, past) in parts() {
        let mut times = ReuseTimes {
            accesses: part.len() as u64,
            ..ReuseTimes::default()
        };
        for block in part {
            at += 1;
            times.count(last.insert(*block, at).map(|before| at - before), 1);
        }
        all.add(&times, [], past);
    }
    let by_times = mean(&MissRatioCurve::of(&all));
    let by_distances = (0..7).map(|seed| {
        let mut sampler = DistanceSampler::with_sets(SHIFT, SETS);
        let mut recent = DecayedHistogram::with_sets(SETS);
        let (mut before, mut reach) = (ReuseTimes::default(), 0);
        for (part, past) in parts() {
            let hashes = part.iter().map(|block| hash(*block, seed));
            hashes
                .filter(|hash| Sampler::is_sampled(*hash, SHIFT))
                .for_each(|hash| sampler.access(hash));
            let counted = ReuseTimes {
                accesses: before.accesses + part.len() as u64,
                ..sampler.counted().clone()
            };
            let (new, now) = (counted.since(&before), sampler.reach());
            recent.add_distances(&new, sampler.lookbacks(), reach..now, past);
            (before, reach) = (counted, now);
        }
        mean(&MissRatioCurve::of_distances(&recent))
    });
    let mut by_distances: Vec<f64> = by_distances.collect();
    by_distances.sort_by(f64::total_cmp);
    println!(
        "all times {by_times:.3}; distances of one block in {}: median {:.3}, largest {:.3}",
        1 << SHIFT,
        by_distances[3],
        by_distances[6]
    );
    assert!(by_distances[3] <= 0.02 && by_times > 0.02);
}

/// 300 MiB in random order, each block some twice in 40 seconds: what was read before the watch began is not taken for
/// what is read once.
#[test]
fn a_short_watch_tells_the_curve_of_a_slow_reader() {
    let mut errors: Vec<f64> = (0..21)
        .map(|seed| {
            let (mut view, mut random) = (View::new(seed, 11_200), Random(seed << 40));
            for _ in 0..40 {
                let blocks = (0..260).map(|_| random.below(4800));
                view.take(blocks, Duration::from_secs(1));
            }
            error_for_random(&view.curve())
        })
        .collect();
    errors.sort_by(f64::total_cmp);
    println!("mean error of nine sizes: {errors:.3?}");
    assert!(errors[10] <= 0.04 && errors[20] <= 0.1, "{errors:?}");
}

/// The same for 130 seconds, but the agent reads the counts only every 20 seconds, as its budget has it in a slow guest. Too
/// many blocks are sampled at first, and evict each other: what was evicted is not taken for what is read once.
#[test]
fn counts_that_are_seldom_read_do_not_bias_the_curve() {
    let seeds = 200;
    let mut sum = 0.0;
    for seed in 0..seeds {
        let (mut view, mut random) = (View::new(seed, 8000), Random(seed << 40));
        for _ in 0..6 {
            let blocks = (0..10_000).map(|_| random.below(4800));
            view.take(blocks, Duration::from_secs(20));
        }
        sum += view.curve().miss_ratio(3800).unwrap();
    }
    let (mean, exact) = (sum / seeds as f64, 1.0 - 3800.0 / 4800.0);
    println!("the mean of {seeds} seeds is {mean:.3}, exact is {exact:.3}");
    assert!((mean - exact).abs() <= 0.03);
}

/// Mean error of nine sizes, where each of 4,800 blocks is read as often as any other.
fn error_for_random(curve: &MissRatioCurve) -> f64 {
    let errors = (1..=9).map(|part| {
        let exact = 1.0 - f64::from(part) / 10.0;
        let size = 480 * u64::try_from(part).unwrap();
        (curve.miss_ratio(size).unwrap() - exact).abs()
    });
    errors.sum::<f64>() / 9.0
}
