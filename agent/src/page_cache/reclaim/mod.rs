//! Reclaim of file pages, and of cold anonymous memory, from tenants above their entitlements: planned in pure functions, done
//! in threads of its own.

mod controller;
mod plan;
mod reclaimer;
mod request;

pub use self::controller::{ReclaimBackoff, ReclaimController, ReclaimIntents};
pub use self::plan::{
    AnonymousIntent, ReclaimIntent, plan_anonymous, plan_reclaim, reclaimable_above_minimums,
};
pub use self::reclaimer::Reclaimer;
pub use self::request::{OwnLimits, Pressure, ReclaimRequest, ReclaimResult, ReclaimTarget};
