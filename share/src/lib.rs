//! Proportional sharing, pure: no I/O, no clock, no threads.
//!
//! One question for every resource (page cache, device credits, hypervisor cache):
//! *what is each tenant entitled to, now?* The answer is hierarchical, weighted and
//! work-conserving; see [`entitlements`].

mod age;
pub mod curve;
mod demand;
mod entitle;
mod fill;
pub mod live;
mod pv;
mod tree;
mod victim;
mod weight;

pub mod credit;
pub mod num;

pub use age::{Ageing, Order, VirtualTime, WaitQueue};
pub use demand::Demand;
pub use entitle::entitlements;
pub use fill::{Bid, divide};
pub use pv::pv;
pub use tree::{NodeId, ParentError, Tree};
pub use victim::{give_back, overage, victim};
pub use weight::{Weight, WeightError};

/// The page size of every kernel that is supported, in bytes. The kernel rounds limits and protections down to it.
pub const PAGE_SIZE: u64 = 4096;
