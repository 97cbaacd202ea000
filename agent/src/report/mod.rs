//! Telling: what the agent knows and does, to whoever may ask.

pub mod decision_log;
pub(crate) mod gather;
pub mod metrics;
pub mod socket;
mod subtotals;
