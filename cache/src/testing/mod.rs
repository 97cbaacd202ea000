//! Drivers of the cache for tests and the lab: a driver of vhost-user-blk, a disk that takes no time, and reproducible random
//! numbers.

#[doc(hidden)]
pub mod front_end;
mod null_disk;
mod random;

pub use null_disk::NullDisk;
pub use random::{Random, Zipf};
