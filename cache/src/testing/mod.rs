//! What tests and the lab drive the cache with: a driver of vhost-user-blk, a disk that takes no time, and random numbers
//! that are the same in every run.

#[doc(hidden)]
pub mod front_end;
mod null_disk;
mod random;

pub use null_disk::NullDisk;
pub use random::{Random, Zipf};
