//! The host agent. Each mechanism has a folder.
//!
//! [`Agent`] is the loop: one tick runs all mechanisms. [`monitor`] decides what is sampled when, within a CPU budget.
//! [`page_cache`] divides the page cache, [`device`] the bandwidth of disks, and [`recharge`] moves the charge of shared files.
//! Each measures, plans in pure functions, and acts. `weights` restores declared weights. [`knobs`] writes the kernel's knobs
//! and restores them. [`status`] reports decisions, by the socket and as metrics. [`model`] has the shared types.

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
