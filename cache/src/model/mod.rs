//! The cache against an oracle: no stale or foreign byte, ever.

mod audit;
pub(crate) mod fault;
mod overlap;
mod sequence;
mod stress;
