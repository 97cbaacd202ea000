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
