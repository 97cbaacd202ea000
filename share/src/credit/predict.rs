//! The future I/O demand predictor.

use std::collections::VecDeque;

/// Predicts the demand of the next interval from those of the past. Any unit.
pub trait Predict {
    /// The demand of the interval that has just ended.
    fn observe(&mut self, demand: f64);
    /// The demand to be expected of the next one.
    fn predict(&self) -> f64;
}

/// The slides' predictor ("Future I/O Demand Predictor"): the 80th percentile of the recent demands, assumed
/// to be normally distributed: mean + 0.8416 σ.
#[derive(Clone, Debug)]
pub struct Percentile {
    window: VecDeque<f64>,
    length: usize,
}

/// The standard normal distribution's 80th percentile.
const Z80: f64 = 0.841_621_233_572_914_3;

impl Percentile {
    /// Over the last `length` intervals, at least 1.
    #[must_use]
    pub fn new(length: usize) -> Self {
        Self {
            window: VecDeque::new(),
            length: length.max(1),
        }
    }
}

impl Predict for Percentile {
    fn observe(&mut self, demand: f64) {
        if self.window.len() == self.length {
            self.window.pop_front();
        }
        self.window.push_back(demand);
    }

    fn predict(&self) -> f64 {
        let count = crate::num::to_f64(u64::try_from(self.window.len()).unwrap_or(1)).max(1.0);
        let mean = self.window.iter().sum::<f64>() / count;
        let spread = self.window.iter().map(|d| (d - mean).powi(2)).sum::<f64>() / count;
        mean + Z80 * spread.sqrt()
    }
}

/// Rises at once, halves each interval: the largest recent demand, discounted by its age.
///
/// A prediction only decides what is left for the others; a tenant that wants more than was predicted is
/// held at no less than its share, so an underestimate costs one interval, and an overestimate costs the
/// others as long as it lasts. The window of the [`Percentile`] remembers a burst for its whole length, and
/// runs after one that has begun; this one does neither. On I/O that comes in bursts it is the nearer of the
/// two (`tests/credit_predict.rs` compares them).
#[derive(Clone, Copy, Debug, Default)]
pub struct Swift {
    level: f64,
}

impl Predict for Swift {
    fn observe(&mut self, demand: f64) {
        self.level = demand.max(self.level / 2.0);
    }

    fn predict(&self) -> f64 {
        self.level
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slides_percentile() {
        let mut predictor = Percentile::new(4);
        for demand in [1000.0, 1.0, 3.0, 1.0, 3.0] {
            predictor.observe(demand);
        }
        // Mean 2, deviation 1: the 1000 has left the window.
        assert!((predictor.predict() - 2.841_621).abs() < 1e-5);
        assert!(Percentile::new(3).predict().abs() < 1e-9);
    }

    #[test]
    fn swift_rises_at_once_and_forgets_soon() {
        let mut predictor = Swift::default();
        predictor.observe(8.0);
        assert!((predictor.predict() - 8.0).abs() < 1e-9);
        for _ in 0..4 {
            predictor.observe(0.0);
        }
        assert!((predictor.predict() - 0.5).abs() < 1e-9);
    }
}
