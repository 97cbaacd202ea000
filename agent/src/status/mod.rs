//! The agent's state and decisions, for the status socket and the metrics.

pub(crate) mod collect;
pub mod decision_log;
pub mod metrics;
pub mod socket;
