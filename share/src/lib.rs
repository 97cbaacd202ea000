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
mod pv;
mod reclaim;
mod tree;
mod wait_queue;
mod weight;

#[allow(
    clippy::too_many_lines,
    rustdoc::broken_intra_doc_links,
    reason = "left as it is until it is designed anew"
)]
pub mod credit;
pub mod num;

pub use entitlement::{Demand, entitlements};
pub use half_life::{HalfLife, RecentMean};
pub use max_min::{Bid, max_min};
pub use num::Fraction;
pub use pv::pv;
pub use reclaim::{apportion_reclaim, excess, victim};
pub use tree::{NodeId, Tree};
pub use wait_queue::{Queueing, VirtualTime, WaitQueue};
pub use weight::{Weight, WeightError};

/// The page size of every kernel that is supported, in bytes: with another one the agent refuses to start. The kernel
/// rounds limits and protections down to it.
pub const PAGE_SIZE: u64 = 4096;
