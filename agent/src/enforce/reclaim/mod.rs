//! Reclaims file pages from tenants, in threads of its own.

mod backoff;
mod controller;
mod own_pages;
mod pressure;
mod reclaimer;
mod request;
mod root_list;

pub use self::backoff::ReclaimBackoff;
pub use self::controller::{ReclaimController, ReclaimIntents};
pub use self::pressure::{OwnLimits, Pressure};
pub use self::reclaimer::Reclaimer;
pub use self::request::{ReclaimRequest, ReclaimResult, ReclaimTarget};
