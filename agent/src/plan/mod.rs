//! Decisions: pure functions of a snapshot. Each intent carries the reason for it.
//!
//! The snapshot is what was observed, [`Entitlements`] is what each tenant is entitled to, and one planner a
//! file says what to do about the difference.

pub mod credit;
pub mod entitlements;
pub mod protect;
pub mod recharge;
pub mod reclaim;
pub mod snapshot;

#[cfg(test)]
mod tests;

use justitia_share::num::to_f64;

pub(crate) use entitlements::MIN_OBSERVATION;
pub use entitlements::{Entitlements, Policy};
pub use justitia_api::{DemandModel, Evidence};
pub use protect::{LowIntent, plan_protection};
pub use recharge::{RechargeIntent, plan_recharge};
pub use reclaim::{ReclaimIntent, plan_reclaim};
pub use snapshot::{Key, Memory, ReclaimExemption, Snapshot, Tenant, WorkingSet};

/// Bytes in a MiB.
const MIB: f64 = 1_048_576.0;

/// In MiB, for reasons that people read.
fn mib(bytes: u64) -> f64 {
    to_f64(bytes) / MIB
}
