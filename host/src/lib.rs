//! Memory between virtual machines, on the host.
//!
//! [`law`] is pure: from the host's view of VMs and guests' reports it makes reclaim requests and balloon sizes. The other
//! modules find VMs, ask guests, and set and restore balloons. [`duplicates`] finds blocks that both guest and host cache.

#![deny(unsafe_code)]

pub mod channel;
pub mod config;
pub mod discover;
pub mod duplicates;
pub mod held;
mod images;
pub mod journal;
pub mod law;
mod managed;
pub mod metrics;
pub mod monitor;
pub mod run;
pub mod socket;
pub mod status;
mod vm;
