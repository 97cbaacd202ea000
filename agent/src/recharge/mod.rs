//! Recharging: moves the charge of a shared file's pages to the tenant that should have it.
//!
//! It is off by default. For `WATCH` of each period the probes record which files are read by other tenants than the one
//! charged. The planner then chooses files, and a thread drops their pages and has them read again from within the owner's
//! cgroup, one file at a time. While the probes watch, each cached read of the machine takes some tens of nanoseconds a page
//! longer.

mod controller;
mod helper;
mod job;
mod plan;

pub use controller::RechargeController;
pub use helper::run_helper;
pub use plan::{
    HORIZON, KeepReason, MIN_RECHARGE_BYTES, MIN_SPARE_MEMORY, RechargeIntent, plan_recharge,
};
