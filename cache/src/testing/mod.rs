//! What tests and the lab drive the cache with: a driver of vhost-user-blk, and random numbers that are the same in every
//! run.

#[doc(hidden)]
pub mod front_end;
mod random;

pub use random::{Random, Zipf};
