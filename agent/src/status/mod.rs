//! What the agent knows and does, for the status socket and the metrics.

pub(crate) mod collect;
pub mod decision_log;
pub mod metrics;
pub mod socket;
