//! Decisions, as pure functions: how much is offered, and which pools there are.

pub(crate) mod acceptance;
pub(crate) mod costs;
pub(crate) mod known;
mod pause;
pub(crate) mod pools;
pub(crate) mod rest;
pub(crate) mod reuse;
pub(crate) mod verdicts;
pub(crate) mod weights;
