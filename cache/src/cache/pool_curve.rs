//! Samples a pool's accesses, and computes its miss-ratio curve.
//!
//! Sampling, model and error: `docs/design/curves.md`. A block's hash is the index's. Its seed is private to the cache, so a
//! guest cannot choose blocks that are sampled.

use crate::lock_rank::{LEAF, Ranked};
use justitia_share::curve::{
    DecayedHistogram, DistanceSampler, HALF_LIFE, MissRatioCurve, ReuseTimes, Sampler, SamplerUse,
    first_shift, next_shift,
};
use justitia_share::num::to_f64;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Instant;

/// Sets of a pool's samples: 8,192 blocks in 144 KiB. A tenant of the page cache has a quarter of that, with blocks sixteen
/// times as large.
const SETS: usize = 1024;

/// The size of the samples, in tables of the usual size.
const TABLES: u64 = (SETS / justitia_share::curve::SETS) as u64;

/// Sampled accesses between updates of the curve: some 10 ns each. Few in tests, whose pools are small.
const UPDATE: u32 = if cfg!(test) { 64 } else { 1024 };

/// Omits points of a curve that change the miss ratio by less.
const STEP: f64 = 0.01;

/// The miss-ratio curve of a pool. Only a sampled access takes its lock; others only compare a hash.
pub(crate) struct PoolCurve {
    /// One block in 2^shift is sampled.
    shift: AtomicU32,
    /// The sampler's clock.
    clock: AtomicU64,
    /// A block with at most this reuse time fits the pool's entitlement in the memory store.
    eviction_time: AtomicU64,
    /// The largest size on the curve, blocks.
    max_blocks: AtomicU64,
    sampled: Ranked<Option<Box<Sampled>>, LEAF>,
    min_shift: AtomicU32,
}

/// The samples of a pool that was accessed.
struct Sampled {
    sampler: DistanceSampler,
    /// The longest known reuse distance at the last update, blocks.
    reach: u64,
    recent: DecayedHistogram,
    curve: MissRatioCurve,
    before: ReuseTimes,
    evicted: u64,
    begun: Instant,
    at: Instant,
    /// Sampled accesses until the next update.
    left: u32,
}

/// The kind of an access to a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// A read that leaves the block cached.
    Read,
    /// A put by a guest into an exclusive cache.
    Put,
    /// A read from an exclusive cache, which removes the block.
    Take,
}

impl PoolCurve {
    /// At most one block in 2^`MIN_SHIFT` is sampled, so that sampling costs little on average.
    pub(crate) const MIN_SHIFT: u32 = 5;

    /// In tests, whose pools are small, any fraction is sampled.
    pub(crate) fn new() -> Self {
        Self::with_min_shift(if cfg!(test) { 0 } else { Self::MIN_SHIFT })
    }

    fn with_min_shift(min_shift: u32) -> Self {
        Self {
            shift: AtomicU32::new(0),
            clock: AtomicU64::new(0),
            eviction_time: AtomicU64::new(0),
            max_blocks: AtomicU64::new(0),
            sampled: Ranked::default(),
            min_shift: AtomicU32::new(min_shift),
        }
    }

    /// Samples at most one block in 2^`min_shift` from now on.
    #[cfg(any(test, feature = "lab"))]
    pub(crate) fn set_min_shift(&self, min_shift: u32) {
        self.min_shift.store(min_shift, Ordering::Relaxed);
        self.shift.store(min_shift, Ordering::Relaxed);
    }

    fn min_shift(&self) -> u32 {
        self.min_shift.load(Ordering::Relaxed)
    }

    /// Sets the size of the stores and the pool's entitlement in them, in blocks.
    pub(crate) fn set_size(&self, capacity: u64, entitlement: u64) {
        self.max_blocks.store(capacity, Ordering::Relaxed);
        if self.sampled.lock().is_none() {
            // A pool may use twice its entitlement.
            let shift = first_shift(entitlement.saturating_mul(2) / TABLES).max(self.min_shift());
            self.shift.store(shift, Ordering::Relaxed);
        }
    }

    /// Notes an access to the block of this hash. `gets` returns the pool's gets so far. `entitlement` is its share of the
    /// memory store.
    pub(crate) fn access(&self, hash: u64, how: Access, gets: impl Fn() -> u64, entitlement: u64) {
        let shift = self.shift.load(Ordering::Relaxed);
        if !Sampler::is_sampled(hash, shift) {
            return;
        }
        let mut sampled = self.sampled.lock();
        let sampled = sampled.get_or_insert_with(|| Box::new(Sampled::new(shift, gets())));
        // The rate may have changed meanwhile.
        if !Sampler::is_sampled(hash, sampled.sampler.shift()) {
            return;
        }
        match how {
            Access::Read => sampled.sampler.access(hash),
            Access::Put => sampled.sampler.put(hash),
            Access::Take => sampled.sampler.take(hash),
        }
        self.clock.store(sampled.sampler.clock(), Ordering::Relaxed);
        sampled.left -= 1;
        if sampled.left == 0 {
            self.update(sampled, gets(), entitlement);
        }
    }

    fn update(&self, sampled: &mut Sampled, gets: u64, entitlement: u64) {
        sampled.update(
            gets,
            self.max_blocks.load(Ordering::Relaxed),
            self.min_shift(),
        );
        self.shift.store(sampled.sampler.shift(), Ordering::Relaxed);
        let time = sampled.sampler.eviction_time(entitlement);
        self.eviction_time.store(time, Ordering::Relaxed);
    }

    /// The pool's clock: it counts accesses, in an exclusive cache puts.
    pub(crate) fn clock(&self) -> u64 {
        self.clock.load(Ordering::Relaxed)
    }

    /// The number of accesses after which an unused block leaves the pool's share of the memory store; 0 while unknown.
    pub(crate) fn eviction_time(&self) -> u64 {
        self.eviction_time.load(Ordering::Relaxed)
    }

    /// Ascending sizes in blocks, each with the fraction of gets that a cache of that size would miss, 0 to 1. Fractions differ
    /// by at least a hundredth. Empty while unknown.
    pub(crate) fn steps(&self) -> Vec<(f64, f64)> {
        let sampled = self.sampled.lock();
        sampled
            .as_ref()
            .map_or_else(Vec::new, |sampled| sampled.curve.steps(STEP))
    }

    /// Recent gets a second; `gets` are the pool's so far. 0 until one was sampled.
    pub(crate) fn rate(&self, gets: u64) -> f64 {
        let sampled = self.sampled.lock();
        sampled
            .as_ref()
            .map_or(0.0, |sampled| sampled.rate(gets, Instant::now()))
    }

    /// Makes the counts older.
    #[cfg(test)]
    fn make_older(&self, by: std::time::Duration) {
        if let Some(sampled) = self.sampled.lock().as_mut() {
            let gets = sampled.before.accesses;
            sampled.at -= by;
            sampled.update(
                gets,
                self.max_blocks.load(Ordering::Relaxed),
                self.min_shift(),
            );
        }
    }

    /// Heap bytes.
    pub(crate) fn bytes(&self) -> usize {
        const HISTOGRAMS: usize = size_of::<u64>() * justitia_share::curve::BUCKETS * 7;
        self.sampled.lock().as_ref().map_or(0, |sampled| {
            size_of::<Sampled>() + sampled.sampler.bytes() + HISTOGRAMS
        })
    }
}

impl Sampled {
    fn new(shift: u32, gets: u64) -> Self {
        let at = Instant::now();
        let before = ReuseTimes {
            accesses: gets,
            ..ReuseTimes::default()
        };
        Self {
            sampler: DistanceSampler::with_sets(shift, SETS),
            reach: 0,
            recent: DecayedHistogram::with_sets(SETS),
            curve: MissRatioCurve::default(),
            before,
            evicted: 0,
            begun: at,
            at,
            left: UPDATE,
        }
    }

    /// Gets a second: the decayed count, divided by the decayed time since the beginning.
    fn rate(&self, gets: u64, now: Instant) -> f64 {
        let life = HALF_LIFE.mean_life().as_secs_f64();
        let since = |then| now.saturating_duration_since(then);
        let new = to_f64(gets.saturating_sub(self.before.accesses));
        // The new gets are assumed to be evenly spread, and decay accordingly.
        let decay = HALF_LIFE.decay(since(self.at));
        let left = life * (1.0 - decay) / since(self.at).as_secs_f64().max(1e-9);
        let counted = self.curve.accesses().mul_add(decay, new * left.min(1.0));
        counted / (life * (1.0 - HALF_LIFE.decay(since(self.begun)))).max(1.0)
    }

    /// Updates the curve with the new samples, of `gets` accesses in total.
    fn update(&mut self, gets: u64, max_blocks: u64, min_shift: u32) {
        self.left = UPDATE;
        let counted = ReuseTimes {
            accesses: gets,
            ..self.sampler.counted().clone()
        };
        let new = counted.since(&self.before);
        let now = Instant::now();
        let elapsed = now.saturating_duration_since(self.at);
        let (lookbacks, reach) = (self.sampler.lookbacks(), self.sampler.reach());
        self.recent
            .add_distances(&new, lookbacks, self.reach..reach, elapsed);
        let old = self.sampler.shift();
        let shift = next_shift(SamplerUse {
            shift: old,
            accesses: new.accesses,
            evicted: self.sampler.evicted() - self.evicted,
            live: self.sampler.used_within(max_blocks.saturating_mul(8)) / TABLES,
            max_blocks: max_blocks / TABLES,
        });
        let shift = shift.max(min_shift);
        if shift != old {
            self.sampler.set_shift(shift);
        }
        self.reach = self.sampler.reach();
        self.evicted = self.sampler.evicted();
        (self.before, self.at) = (counted, now);
        self.curve = MissRatioCurve::of_distances(&self.recent);
    }
}

#[cfg(test)]
mod tests;
