//! `cargo bench -p justitia-lock`: Justitia's Fig. 12 in user space, and what an uncontended lock costs.
//!
//! Eight contenders, one of weight 100 and seven of weight 1000, take the lock again and again and hold
//! it for a page allocation's time. The share of a contender is the number of its grants.

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Barrier, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use justitia_lock::{Aging, Claimant, Queueing, WeightLock};
use justitia_share::num::to_f64;
use justitia_share::{Weight, pv};

const WEIGHTS: [u64; 8] = [100, 1000, 1000, 1000, 1000, 1000, 1000, 1000];
const RUN: Duration = Duration::from_millis(800);
const WARM_UP: Duration = Duration::from_millis(50);
const HOLD: Duration = Duration::from_micros(5);
const ROUNDS: usize = 5;

#[expect(clippy::expect_used, reason = "constants in range")]
fn weights() -> [Weight; 8] {
    WEIGHTS.map(|w| Weight::try_from(w).expect("a weight"))
}

fn main() {
    println!(
        "Fig. 12: one contender of weight 100, seven of 1000; ideal 1 : 10, median PV of {ROUNDS} runs"
    );
    println!(
        "{:<34} {:>7} {:>7} {:>12}  shares of the median run",
        "order", "PV", "spread", "grants/s"
    );
    for (name, order) in [
        ("FIFO", Queueing::Fifo),
        ("weight, without aging", Queueing::PriorityAging(Aging::Off)),
        (
            "weight, aging 100 (Algorithm 1)",
            Queueing::PriorityAging(Aging::By(100)),
        ),
        ("weight, aging 14", Queueing::PriorityAging(Aging::By(14))),
        ("virtual time", Queueing::Wfq),
    ] {
        contend(name, order);
    }
    println!("\nuncontended lock and unlock, ns: median (min .. max) of {ROUNDS}");
    let ours = WeightLock::new(0u64, Queueing::default());
    uncontended("justitia-lock", || *ours.lock(Weight::default()) += 1);
    let std = Mutex::new(0u64);
    uncontended("std::sync::Mutex", || {
        *std.lock().unwrap_or_else(PoisonError::into_inner) += 1
    });
    let parking = parking_lot::Mutex::new(0u64);
    uncontended("parking_lot::Mutex", || *parking.lock() += 1);
}

fn contend(name: &str, order: Queueing) {
    let weights = weights();
    let mut runs: Vec<(f64, Vec<f64>)> = (0..ROUNDS)
        .map(|_| {
            let grants = run(order, &weights);
            (pv(&weights, &grants).unwrap_or(f64::NAN), grants)
        })
        .collect();
    runs.sort_by(|a, b| a.0.total_cmp(&b.0));
    let (pv, grants) = &runs[ROUNDS / 2];
    let shares: Vec<_> = grants
        .iter()
        .map(|g| {
            if grants[0] > 0.0 {
                format!("{:.2}", g / grants[0])
            } else {
                format!("{g:.0} grants")
            }
        })
        .collect();
    let (least, most) = (runs[0].0, runs[ROUNDS - 1].0);
    let spread = if least < most { most - least } else { 0.0 };
    let rate = grants.iter().sum::<f64>() / RUN.as_secs_f64();
    println!(
        "{name:<34} {pv:>7.3} {spread:>7.3} {rate:>12.0}  {}",
        shares.join(" : ")
    );
}

fn run(order: Queueing, weights: &[Weight]) -> Vec<f64> {
    let lock = WeightLock::new((), order);
    let stop = AtomicBool::new(false);
    let start = Barrier::new(weights.len() + 1);
    let grants: Vec<_> = weights.iter().map(|_| AtomicU64::new(0)).collect();
    thread::scope(|scope| {
        for (weight, count) in weights.iter().zip(&grants) {
            let (lock, stop, start) = (&lock, &stop, &start);
            scope.spawn(move || {
                let claimant = Claimant::new(*weight);
                start.wait();
                while !stop.load(Ordering::Relaxed) {
                    let held = lock.lock_as(&claimant);
                    let since = Instant::now();
                    while since.elapsed() < HOLD {}
                    drop(held);
                    count.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        start.wait();
        // Until all run, those who already do have the lock to themselves.
        thread::sleep(WARM_UP);
        let before = read(&grants);
        thread::sleep(RUN);
        let after = read(&grants);
        stop.store(true, Ordering::Relaxed);
        after
            .iter()
            .zip(before)
            .map(|(a, b)| to_f64(a - b))
            .collect()
    })
}

fn read(counts: &[AtomicU64]) -> Vec<u64> {
    counts.iter().map(|c| c.load(Ordering::Relaxed)).collect()
}

fn uncontended(name: &str, mut once: impl FnMut()) {
    const TIMES: u32 = 20_000_000;
    let mut runs: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            let since = Instant::now();
            for _ in 0..TIMES {
                black_box(&mut once)();
            }
            since.elapsed().as_secs_f64() * 1e9 / f64::from(TIMES)
        })
        .collect();
    runs.sort_by(f64::total_cmp);
    println!(
        "{name:<20} {:.2} ({:.2} .. {:.2})",
        runs[ROUNDS / 2],
        runs[0],
        runs[ROUNDS - 1]
    );
}
