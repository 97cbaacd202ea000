//! Accesses made up for the tests of curves.

#![allow(dead_code, reason = "each test file uses some of it")]
#![expect(clippy::cast_precision_loss, reason = "small numbers")]

use std::time::Duration;

use justitia_share::curve::{DecayedHistogram, MissRatioCurve, Sampler, SamplerUse, next_shift};

/// The agent's view of one tenant's accesses.
pub(crate) struct View {
    pub sampler: Sampler,
    recent: DecayedHistogram,
    seed: u64,
    /// The largest size that the curve is wanted for, blocks.
    max_blocks: u64,
}

impl View {
    pub(crate) fn new(seed: u64, max_blocks: u64) -> Self {
        let (sampler, recent) = (Sampler::new(0), DecayedHistogram::default());
        Self {
            sampler,
            recent,
            seed,
            max_blocks,
        }
    }

    /// These accesses within the time `past`.
    pub(crate) fn take(&mut self, blocks: impl IntoIterator<Item = u64>, past: Duration) {
        let (before, evicted) = (self.sampler.counted().clone(), self.sampler.evicted());
        for block in blocks {
            self.sampler.access(hash(block, self.seed));
        }
        let new = self.sampler.counted().since(&before);
        let shift = next_shift(SamplerUse {
            shift: self.sampler.shift(),
            accesses: new.accesses,
            evicted: self.sampler.evicted() - evicted,
            live: self.sampler.live(1 << 20),
            max_blocks: self.max_blocks,
        });
        self.recent.add(&new, self.sampler.lookbacks(), past);
        if shift < self.sampler.shift() {
            self.recent.restart_observation();
        }
        self.sampler.set_shift(shift);
    }

    pub(crate) fn curve(&self) -> MissRatioCurve {
        MissRatioCurve::of(&self.recent)
    }
}

/// As good as random, and other for each seed.
pub(crate) fn hash(block: u64, seed: u64) -> u64 {
    let mut h =
        (block ^ seed.wrapping_mul(0x9E37_79B9_7F4A_7C15)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    h = (h ^ h >> 32).wrapping_mul(0x94D0_49BB_1331_11EB);
    h ^ h >> 29
}

/// A sequence that is as good as random, and the same each time.
pub(crate) struct Random(pub u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(1);
        hash(self.0, 77)
    }
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }
    pub(crate) fn part(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }
}

/// Blocks by Zipf's law, the first most often.
pub(crate) fn zipf(accesses: usize, blocks: usize, exponent: f64, random: &mut Random) -> Vec<u64> {
    let mut sums = Vec::with_capacity(blocks);
    let mut sum = 0.0;
    for rank in 0..blocks {
        sum += ((rank + 1) as f64).powf(-exponent);
        sums.push(sum);
    }
    (0..accesses)
        .map(|_| {
            let at = random.part() * sum;
            sums.partition_point(|s| *s < at) as u64
        })
        .collect()
}
