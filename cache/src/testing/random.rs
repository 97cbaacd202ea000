//! Random numbers that are the same in every run.

use justitia_share::num::to_f64;

/// A small generator of random numbers (xorshift), so that every run does the same.
pub struct Random(u64);

impl Random {
    /// The same numbers for the same seed.
    pub const fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    /// The next number.
    pub const fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// One from 0 to less than `n`.
    pub const fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    /// From 0 to less than 1.
    pub fn part(&mut self) -> f64 {
        to_f64(self.below(1 << 30)) / f64::from(1 << 30)
    }
}

/// Zipf's law: of blocks numbered from 0, the n-th is drawn with a probability as 1 / (n + 1)^skew.
#[derive(Clone, Debug)]
pub struct Zipf {
    sums: Vec<f64>,
}

impl Zipf {
    /// The law of so many blocks. With a skew of 0 all are alike.
    pub fn new(blocks: u64, skew: f64) -> Self {
        let sums = (1..=blocks).scan(0.0, |sum, rank| {
            *sum += to_f64(rank).powf(-skew);
            Some(*sum)
        });
        Self {
            sums: sums.collect(),
        }
    }

    /// The block at this part of the distribution, from 0 to less than 1.
    pub fn block(&self, part: f64) -> u64 {
        let drawn = part * self.sums.last().copied().unwrap_or(0.0);
        let rank = self.sums.partition_point(|sum| *sum < drawn);
        u64::try_from(rank).unwrap_or(0)
    }
}
