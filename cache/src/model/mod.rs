//! The cache against an oracle: no stale or foreign byte, ever.

mod audit;
mod cache_model;
pub(crate) mod fault;
mod messages;
mod offers;
mod op;
mod overlap;
mod port;
mod reconfigure;
mod sequence;
mod step;
mod stress;
