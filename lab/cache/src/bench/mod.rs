//! Measurements of the cache in this process: what `justitia-lab cache bench` shows.
//!
//! Everything that is compared is measured side by side in one run, several times in turn, and reported as
//! the median with the spread: a ratio means something on a noisy machine, a single number does not.

mod contention;
mod delay_disk;
mod hits;
mod hybrid;
mod occupancy;
mod puts;
mod spread;

#[cfg(test)]
mod neighbours;
#[cfg(test)]
mod replay;

pub use contention::{Contention, contention};
pub use hits::{Hits, hits};
pub use hybrid::{Hybrid, Pattern, hybrid};
pub use occupancy::{Occupancy, PoolOccupancy, occupancy};
pub use puts::{Puts, puts};
pub use spread::Spread;

#[cfg(test)]
mod tests {
    use super::{contention, hits, occupancy, puts};
    use justitia_share::Weight;
    use std::time::Duration;

    /// As below, of puts alone: seconds.
    #[test]
    #[ignore = "a measurement: prints"]
    fn measured_puts() {
        println!("{}", puts(65_536, 7).unwrap());
    }

    /// `cargo test --release --lib measured -- --ignored --nocapture`, on a machine that does nothing else.
    #[test]
    #[ignore = "a measurement: prints, and takes a minute"]
    fn measurements() {
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
}
