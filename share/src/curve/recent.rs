//! What was counted lately.

use std::time::Duration;

use super::buckets::BUCKETS;
use super::reuse::ReuseTimes;
use crate::num::to_f64;

/// After so long a count is worth half: a change of what a tenant does rules its curve after a minute or two, and a
/// busy tenant that falls idle is remembered for some minutes more ([`Curve::useful`](super::Curve::useful)).
pub const HALF_LIFE: Duration = Duration::from_secs(60);

/// Counts that fade.
#[derive(Clone, Debug, PartialEq)]
pub struct Recent {
    pub(super) times: Box<[f64; BUCKETS]>,
    pub(super) cold: f64,
    pub(super) visits: f64,
}

impl Default for Recent {
    fn default() -> Self {
        Self {
            times: Box::new([0.0; BUCKETS]),
            cold: 0.0,
            visits: 0.0,
        }
    }
}

impl Recent {
    /// Adds what was counted in the time `past`, which has just ended; what was there before fades by that time.
    pub fn add(&mut self, counted: &ReuseTimes, past: Duration) {
        let fade = (-past.as_secs_f64() / HALF_LIFE.as_secs_f64()).exp2();
        for (sum, count) in self.times.iter_mut().zip(counted.times.iter()) {
            *sum = sum.mul_add(fade, to_f64(*count));
        }
        self.cold = self.cold.mul_add(fade, to_f64(counted.cold));
        self.visits = self.visits.mul_add(fade, to_f64(counted.visits));
    }

    /// Sampled accesses, each for as many as it stands for.
    pub(super) fn sampled(&self) -> f64 {
        self.times.iter().sum::<f64>() + self.cold
    }
}
