//! Measurements of the cache in this process: what `justitia cache bench` shows.
//!
//! Everything that is compared is measured side by side in one run, several times in turn, and reported as
//! the median with the spread: a ratio means something on a noisy machine, a single number does not.

mod contention;
mod hits;
mod occupancy;
mod replay;

pub use contention::{Contention, contention};
pub use hits::{Hits, hits};
pub use occupancy::{Occupancy, PoolOccupancy, occupancy};
pub use replay::{Access, Replayed, TraceError, exclusive, inclusive, parse_trace, zipf_and_scans};

use crate::block::len;
use crate::block_dev::{Disk, check_range};
use serde::Serialize;
use std::io;

/// The median of several measurements, and the lowest and the highest of them.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    /// Half are below.
    pub median: f64,
    /// The lowest.
    pub low: f64,
    /// The highest.
    pub high: f64,
}

impl Spread {
    /// Of no measurement everything is 0.
    #[must_use]
    pub fn of(mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        let at = |i: usize| values.get(i).copied().unwrap_or(0.0);
        Self {
            median: at(values.len() / 2),
            low: at(0),
            high: at(values.len().saturating_sub(1)),
        }
    }
}

impl std::fmt::Display for Spread {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{:.2} ({:.2} to {:.2})",
            self.median, self.low, self.high
        )
    }
}

/// A disk of zeroes that takes no time, so that what is measured is the cache.
struct NullDisk(u64);

impl Disk for NullDisk {
    fn size(&self) -> u64 {
        self.0
    }
    fn read_at(&self, buf: &mut [u8], off: u64) -> io::Result<()> {
        check_range(self.0, off, len(buf))
    }
    fn write_at(&self, buf: &[u8], off: u64, _fua: bool) -> io::Result<()> {
        check_range(self.0, off, len(buf))
    }
    fn flush(&self) -> io::Result<()> {
        Ok(())
    }
    fn discard(&self, off: u64, len: u64) -> io::Result<()> {
        check_range(self.0, off, len)
    }
    fn write_zeroes(&self, off: u64, len: u64, _fua: bool, _may_unmap: bool) -> io::Result<()> {
        check_range(self.0, off, len)
    }
}

/// A small generator of random numbers (xorshift), so that every run does the same.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) const fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    const fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub(crate) const fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    /// From 0 to below 1.
    fn part(&mut self) -> f64 {
        justitia_share::num::to_f64(self.next() >> 12) / justitia_share::num::to_f64(1 << 52)
    }
}

/// Operations a second.
fn rate(count: u64, time: std::time::Duration) -> f64 {
    justitia_share::num::to_f64(count) / time.as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;
    use justitia_share::Weight;
    use std::time::Duration;

    /// `cargo test --release --lib measured -- --ignored --nocapture`, on a machine that does nothing else.
    #[test]
    #[ignore = "a measurement: prints, and takes a minute"]
    fn measured() {
        println!("{}", hits(65_536, 400_000, 7).unwrap());
        for c in contention(&[1, 2, 4, 8, 16], Duration::from_millis(300), 5).unwrap() {
            println!(
                "{:2} threads: own locks {:.0}/s, one lock {:.0}/s, ratio {}",
                c.threads, c.own_locks.median, c.one_lock.median, c.ratio
            );
        }
        for weights in [
            [100; 4],
            [100, 200, 400, 800],
            [800, 400, 200, 100],
            [1, 10, 100, 1000],
        ] {
            let weights = weights.map(|w| Weight::try_from(w).unwrap());
            println!("{:?}", occupancy(&weights, 64 << 20).unwrap());
        }
    }

    #[test]
    fn a_spread_is_in_order() {
        let spread = Spread::of(vec![3.0, 1.0, 2.0]);
        assert_eq!((spread.low, spread.median, spread.high), (1.0, 2.0, 3.0));
        assert_eq!(Spread::of(Vec::new()).median, 0.0);
    }
}
