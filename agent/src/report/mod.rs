//! Report: what the agent knows and does, for the status socket and metrics.

pub mod decision_log;
pub mod metrics;
mod policy;
pub mod socket;
pub(crate) mod status;
mod subtotals;
mod working_set;
