//! Proportional sharing, pure: no I/O, no clock, no threads.
//!
//! One question for every resource (page cache, device bandwidth, hypervisor cache):
//! *what is each tenant entitled to, now?* The answer is hierarchical, weighted and
//! work-conserving; see [`entitlements`].

#![deny(unsafe_code)]

pub mod curve;
mod entitlement;
pub mod fairness_window;
mod half_life;
mod max_min;
pub mod num;
mod pv;
mod reclaim;
mod tree;
mod wait_queue;
mod weight;

pub use entitlement::{Demand, entitlements};
pub use half_life::{HalfLife, RecentMean};
pub use max_min::{Bid, max_min};
pub use num::Fraction;
pub use pv::{jain, pv};
pub use reclaim::{apportion_reclaim, excess, victim};
pub use tree::{NodeId, Tree};
pub use wait_queue::{Queueing, VirtualTime, WaitQueue};
pub use weight::{Weight, WeightError};

/// The page size of every kernel that is supported, in bytes: with another one the agent refuses to start. The kernel
/// rounds limits and protections down to it.
pub const PAGE_SIZE: u64 = 4096;
