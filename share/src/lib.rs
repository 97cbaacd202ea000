//! Proportional sharing, pure: no I/O, no clock, no threads.
//!
//! One question for every resource (page cache, device credits, hypervisor cache):
//! *what is each tenant entitled to, now?* The answer is hierarchical, weighted and
//! work-conserving; see [`entitlements`].

mod weight;

pub mod num;

pub use weight::{Weight, WeightError};
