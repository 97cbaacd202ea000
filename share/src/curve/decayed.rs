//! Reuse times, or reuse distances, of which old ones count less.

use std::ops::Range;
use std::time::Duration;

use super::reuse_times::ReuseTimes;
use super::reuse_times::{BUCKETS, bucket, least};
use super::sampler::SETS;
use crate::HalfLife;
use crate::num::to_f64;

/// After this time a count is worth half. A change of a tenant's working set rules its curve after a minute or two.
pub const HALF_LIFE: HalfLife = HalfLife::new(Duration::from_secs(60));

/// Reuse times, or distances ([`Self::add_distances`]), that decay exponentially: with every [`HALF_LIFE`] a count halves.
#[derive(Clone, Debug, PartialEq)]
pub struct DecayedHistogram {
    /// Accesses by reuse time.
    pub(super) times: Box<[f64; BUCKETS]>,
    /// Accesses of which no earlier one to the same block is known, by how long it would be known: longer ago than that,
    /// or never.
    pub(super) censored: Box<[f64; BUCKETS]>,
    /// [`ReuseTimes::of_frequent`].
    pub(super) of_frequent: Box<[f64; BUCKETS]>,
    /// All accesses.
    pub(super) accesses: f64,
    /// Sampled accesses since the observation began, each for as many as it stands for: an earlier access is known no
    /// further back than this.
    observed: u64,
    /// Sets of the sampler.
    sets: usize,
}

impl Default for DecayedHistogram {
    fn default() -> Self {
        Self {
            times: Box::new([0.0; BUCKETS]),
            censored: Box::new([0.0; BUCKETS]),
            of_frequent: Box::new([0.0; BUCKETS]),
            accesses: 0.0,
            observed: 0,
            sets: SETS,
        }
    }
}

impl DecayedHistogram {
    /// Of a sampler with `sets` sets ([`DistanceSampler::with_sets`](super::DistanceSampler::with_sets)).
    #[must_use]
    pub fn with_sets(sets: usize) -> Self {
        Self {
            sets: sets.max(1),
            ..Self::default()
        }
    }

    /// Adds what was counted in the time `elapsed`, which has just ended; what was there before decays by that time.
    ///
    /// `lookbacks` has an element for each set of the sampler that is full ([`Sampler::lookbacks`](super::Sampler)): an
    /// earlier access to a block of this set is known no further back than that many accesses. So a block that was
    /// evicted from the sample is not taken for one that was never accessed before.
    pub fn add(
        &mut self,
        counted: &ReuseTimes,
        lookbacks: impl IntoIterator<Item = u64>,
        elapsed: Duration,
    ) {
        let before = self.observed;
        self.observed += counted.sampled();
        self.add_seen(counted, lookbacks, before..self.observed, elapsed);
    }

    /// As [`add`](Self::add), of distances in the place of times ([`DistanceSampler`](super::DistanceSampler)): while they
    /// were counted, earlier accesses were known if no more blocks were accessed since than `reach` says: as many in the
    /// beginning, and as many in the end.
    pub fn add_distances(
        &mut self,
        counted: &ReuseTimes,
        lookbacks: impl IntoIterator<Item = u64>,
        reach: Range<u64>,
        elapsed: Duration,
    ) {
        let from = reach.start.min(reach.end);
        self.add_seen(counted, lookbacks, from..reach.end, elapsed);
    }

    fn add_seen(
        &mut self,
        counted: &ReuseTimes,
        lookbacks: impl IntoIterator<Item = u64>,
        observed: Range<u64>,
        elapsed: Duration,
    ) {
        let decay = HALF_LIFE.decay(elapsed);
        let times = self.times.iter_mut().zip(counted.times.iter());
        let frequent = self.of_frequent.iter_mut();
        for (sum, count) in times.chain(frequent.zip(counted.of_frequent.iter())) {
            *sum = sum.mul_add(decay, to_f64(*count));
        }
        for sum in self.censored.iter_mut() {
            *sum *= decay;
        }
        self.accesses = self.accesses.mul_add(decay, to_f64(counted.accesses));
        // Blocks fall evenly on the sets.
        let sets = to_f64(self.sets as u64);
        let of_a_set = to_f64(counted.cold) / sets;
        let mut not_full = sets;
        for lookback in lookbacks {
            let (from, to) = (observed.start.min(lookback), observed.end.min(lookback));
            self.add_censored(of_a_set, from, to);
            not_full -= 1.0;
        }
        self.add_censored(not_full.max(0.0) * of_a_set, observed.start, observed.end);
    }

    /// To be called when more blocks are sampled from now on: of those that are new, no earlier access is known.
    pub const fn restart_observation(&mut self) {
        self.observed = 0;
    }

    /// Accesses that came evenly while an earlier one would have been known for `from` to `to`.
    fn add_censored(&mut self, count: f64, from: u64, to: u64) {
        if from == to {
            if let Some(sum) = self.censored.get_mut(bucket(from)) {
                *sum += count;
            }
            return;
        }
        let each = count / to_f64(to.saturating_sub(from));
        for index in bucket(from)..=bucket(to) {
            let low = least(index).max(from);
            // The last bucket has no end.
            let end = if index + 1 < BUCKETS {
                least(index + 1)
            } else {
                to
            };
            let high = end.min(to);
            if let Some(sum) = self.censored.get_mut(index) {
                *sum += each * to_f64(high.saturating_sub(low));
            }
        }
    }

    /// Sampled accesses, each for as many as it stands for.
    pub(super) fn sampled(&self) -> f64 {
        self.times.iter().chain(self.censored.iter()).sum()
    }
}
