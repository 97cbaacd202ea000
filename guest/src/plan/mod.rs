//! Decisions, as pure functions: how much is offered, and which pools there are.

pub(crate) mod acceptance;
mod pause;
pub(crate) mod pools;
pub(crate) mod rest;
pub(crate) mod reuse;
pub(crate) mod weights;
