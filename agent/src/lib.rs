//! The agent of the host, a folder a mechanism.
//!
//! [`Agent`] is the loop: one tick goes through all mechanisms. [`monitor`] decides what is sampled when, within a CPU
//! budget. [`page_cache`] divides the page cache, [`device`] the bandwidth of disks, and [`recharge`] moves the charge of
//! shared files: each measures, plans, purely, and acts. `weights` writes back what was declared. [`knobs`] writes the kernel's knobs and restores them. [`status`]
//! tells what was done, by the socket and as metrics. [`model`] has the types that they share.

#![deny(unsafe_code)]

pub mod config;
pub mod device;
pub mod knobs;
pub mod model;
pub mod monitor;
pub mod page_cache;
pub mod recharge;
pub mod status;

mod agent;
mod run;
mod weights;

pub use agent::Agent;
pub use run::{RunError, Standalone, run};
