//! Decisions: pure functions of plain values, mostly of a [`Snapshot`]. They read no clock and do no I/O, so a table of cases tests each of them.
//!
//! [`Entitlements`] divides the page cache by weight. One planner a file compares that with what tenants hold, and returns
//! intents. Each intent carries the facts that led to it.
//!
//! | planner | decides | paper |
//! |---|---|---|
//! | [`plan_reclaim`] | which tenants give back file pages, and how many | Justitia, section III-B3 |
//! | [`plan_anonymous`] | from which tenant cold anonymous memory is swapped out, and how much | as the kernel's own reclaim would |
//! | [`plan_protection`] | `memory.low` of every tenant | Justitia, section III-B3, through the kernel's own reclaim |
//! | [`plan_recharge`] | which shared files are charged to another tenant | Justitia, section III-B2 |
//! | [`credit::plan_limits`], [`credit::plan_rooms`] | `io.max` of tenants on a contended disk; `memory.high` of writers | WDT; Justitia, section III-A |

pub mod anonymous;
pub mod credit;
mod demand;
pub mod entitlements;
mod policy;
pub mod protection;
pub mod recharge;
pub mod reclaim;

#[cfg(test)]
pub(crate) mod fixture;
#[cfg(test)]
mod tests;

pub use crate::model::{Key, Memory, Snapshot, Tenant, WorkingSet};
pub use anonymous::{AnonymousIntent, plan_anonymous};
pub use entitlements::Entitlements;
pub use justitia_api::{DemandModel, Evidence, ReclaimExemption};
pub use policy::Policy;
pub use protection::{Low, LowIntent, plan_protection};
pub use recharge::{RechargeIntent, plan_recharge};
pub use reclaim::{ReclaimIntent, plan_reclaim, reclaimable_above_minimums};
