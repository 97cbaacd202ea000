//! The cache against an oracle: no stale or foreign byte, ever.

mod audit;
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
mod world;
