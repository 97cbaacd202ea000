//! Report: what the agent knows and does, for the status socket and metrics.

pub mod decision_log;
pub(crate) mod gather;
pub mod metrics;
mod policy;
pub mod socket;
mod subtotals;
mod working_set;
