//! The two predictors of demand on traces: how much demand each would leave unserved, and how much of the
//! device it would keep from others for nothing.

use justitia_share::credit::{Percentile, Predict, Swift};
use justitia_share::num::to_f64;

/// What a predictor did on a trace, both as parts of the whole demand.
#[derive(Debug)]
struct Score {
    /// Demand above the prediction.
    missed: f64,
    /// Prediction above the demand.
    wasted: f64,
}

fn score(mut predictor: impl Predict, trace: &[f64]) -> Score {
    let (mut missed, mut wasted) = (0.0, 0.0);
    predictor.observe(trace[0]);
    for demand in &trace[1..] {
        let predicted = predictor.predict();
        missed += (demand - predicted).max(0.0);
        wasted += (predicted - demand).max(0.0);
        predictor.observe(*demand);
    }
    let all: f64 = trace[1..].iter().sum();
    Score {
        missed: missed / all,
        wasted: wasted / all,
    }
}

/// A repeatable sequence of numbers from 0 to 1.
fn noise() -> impl Iterator<Item = f64> {
    let mut state = 88_172_645_463_325_252_u64;
    std::iter::repeat_with(move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        to_f64(state >> 40) / to_f64(1 << 24)
    })
}

/// Bursts of some ten intervals, pauses of some thirty: what storage sees of one tenant.
fn bursts() -> Vec<f64> {
    let mut noise = noise();
    let mut draw = move || noise.next().unwrap_or(0.5);
    let mut trace = Vec::new();
    while trace.len() < 5000 {
        let (burst, pause, height) = (1.0 + draw() * 20.0, draw() * 60.0, 10.0 + draw() * 90.0);
        let mut left = burst;
        while left > 0.0 {
            trace.push(height * (0.8 + 0.4 * draw()));
            left -= 1.0;
        }
        let mut left = pause;
        while left > 0.0 {
            trace.push(0.0);
            left -= 1.0;
        }
    }
    trace
}

/// Steady demand, with noise.
fn steady() -> Vec<f64> {
    noise().take(5000).map(|n| 50.0 + 20.0 * n).collect()
}

#[test]
fn on_bursts_swift_wastes_and_misses_less_than_the_percentile() {
    let trace = bursts();
    let (slides, swift) = (
        score(Percentile::new(25), &trace),
        score(Swift::default(), &trace),
    );
    println!("bursts: percentile {slides:?}, swift {swift:?}");
    assert!(swift.wasted < slides.wasted / 2.0, "{slides:?} {swift:?}");
    assert!(swift.missed < slides.missed, "{slides:?} {swift:?}");
}

#[test]
fn on_steady_demand_they_are_as_good() {
    let trace = steady();
    let (slides, swift) = (
        score(Percentile::new(25), &trace),
        score(Swift::default(), &trace),
    );
    println!("steady: percentile {slides:?}, swift {swift:?}");
    assert!(swift.missed < slides.missed + 0.06, "{slides:?} {swift:?}");
    assert!(swift.wasted < slides.wasted + 0.06, "{slides:?} {swift:?}");
}
