//! Decisions, as pure functions: how much is offered, and which pools there are.

pub(crate) mod acceptance;
pub(crate) mod pools;
pub(crate) mod reuse;
pub(crate) mod weights;
