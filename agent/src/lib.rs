//! The agent: monitor, plan, enforce, report.
//!
//! [`monitor`] makes a snapshot of the cgroup tree and the memory. [`plan`] decides, purely. [`enforce`] writes the knobs
//! and restores them. [`report`] tells what was done. [`model`] has the types that they share.

#![deny(unsafe_code)]

pub mod config;
pub mod enforce;
pub mod model;
pub mod monitor;
pub mod plan;
pub mod report;

mod agent;
mod run;

pub(crate) use justitia_api::escape;

pub use agent::Agent;
pub use run::{RunError, Standalone, run};
