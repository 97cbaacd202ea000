//! Decisions: pure functions of a snapshot. Each intent carries the reason for it.
//!
//! The snapshot is what was observed, [`Shares`] is what each tenant is entitled to, and one planner a
//! file says what to do about the difference.

pub mod credit;
pub mod own;
pub mod protect;
pub mod reclaim;
pub mod shares;
pub mod snapshot;

#[cfg(test)]
mod tests;

pub use own::{OwnIntent, plan_ownership};
pub use protect::{LowIntent, plan_protection};
pub use reclaim::{ReclaimIntent, plan_reclaim};
pub use shares::{Policy, Shares};
pub use snapshot::{Key, Memory, Snapshot, Spared, Tenant};
