//! The agent's state and decisions, for the status socket and the metrics; and the control socket.

pub(crate) mod collect;
pub mod control;
pub mod decision_log;
pub mod metrics;
