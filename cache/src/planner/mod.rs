//! Weights of a VM's pools that follow from declared targets and from the pools' miss-ratio curves.
//!
//! DoubleDecker (section 5.4) leaves open how high-level objectives become weights. Here: a pool with a target gets the
//! size that the target needs; what is left is divided so that the other pools have the most hits. The law, its constants
//! and why: `docs/design/hypervisor-cache.md`, "Targets".
//!
//! Pure: what is measured comes in, weights and reasons come out. `serve::planning` measures, and sets the weights.

mod candidate;
mod correction;
mod division;
mod floor;
mod goal;
mod law;
mod measured;
mod target;
mod weights;

#[cfg(test)]
mod simulation;

pub(crate) use law::{PERIOD, Plan, Planner, PoolView};
pub use law::{PlannedPool, PoolState};
pub use target::Target;
