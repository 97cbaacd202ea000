//! The agent: observe, plan, act, tell.
//!
//! [`observe`] makes a snapshot of the weight tree and the memory, [`plan`] decides (purely), [`act`] writes
//! through a ledger that gives everything back, [`tell`] answers who asks.

pub mod config;
pub mod enforce;
pub mod monitor;
pub mod plan;
pub mod regular;
pub mod report;

mod agent;
mod run;

pub(crate) use justitia_api::escape;

pub use agent::Agent;
pub use run::{Alone, RunError, run};
