//! Recharging: moves the charge of a shared file's pages to its heaviest reader.
//!
//! It is off by default. For `WATCH` of each period the probes record reads of files whose pages another tenant is charged for.
//! The planner then chooses files. A thread drops their pages and has them read again from within the owner's cgroup, one file
//! at a time. While the probes watch, each cached read on the machine takes some tens of nanoseconds a page longer.

mod controller;
mod helper;
mod job;
mod plan;

pub use controller::RechargeController;
pub use helper::run_helper;
pub use plan::{
    HORIZON, KeepReason, MIN_RECHARGE_BYTES, MIN_SPARE_MEMORY, RechargeIntent, plan_recharge,
};
