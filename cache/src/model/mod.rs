//! The cache against an oracle: no stale or foreign byte, ever.

mod audit;
pub(crate) mod fault;
mod op;
mod overlap;
mod reconfigure;
mod sequence;
mod step;
mod stress;
mod world;
