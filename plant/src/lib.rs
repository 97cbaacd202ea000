//! A deterministic model of a machine: a disk, the page cache above it, and tenants. For tests: control laws are tried on
//! it, over hundreds of seeds, before a guest confirms them.
//!
//! It moves in steps of a millisecond and request by request; a minute takes some ten milliseconds. Everything that is
//! random comes from one seed.
//!
//! | part | what is modelled | what is not |
//! |---|---|---|
//! | [`Disk`] | time by bytes, by requests or by both; FIFO with tags; BFQ's slices by weight, and what it lets past its weights; io.cost's budgets and donations | seeks, merges, the device's own cache |
//! | [`Memory`] | dirty limits, global and of each cgroup (`memory.high`); background writeback of each cgroup; stale sums; rewrites and deletions before writeback; fsync behind others' data | reclaim, read-ahead, the age of pages |
//! | [`Work`] | direct at any depth, buffered random writers, file servers, fsync loops; thinking, bursts | processors |
//!
//! How far it is from recorded guests: `make sim`, and docs/results/device.md.

#![deny(unsafe_code)]

mod cache;
mod disk;
mod machine;
mod work;

pub use cache::Memory;
pub use disk::{Disk, Scheduler};
pub use machine::{DiskSample, Machine, TenantSample};
pub use work::{Kind, Work};

/// A step of the model, seconds.
pub(crate) const STEP: f64 = 0.001;

/// Numbers that look random (xorshift64*, Vigna 2016), the same for the same seed.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// Numbers of this seed.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// The next one, 0 to 1.
    pub fn fraction(&mut self) -> f64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let bits = self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32;
        f64::from(u32::try_from(bits).unwrap_or(u32::MAX)) / f64::from(u32::MAX)
    }

    /// One between these two.
    pub fn between(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * self.fraction()
    }
}
