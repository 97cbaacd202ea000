//! Telling: what the agent knows and does, to whoever may ask.

pub(crate) mod gather;
pub mod history;
pub mod metrics;
pub mod socket;
