//! Enforcement: writes cgroup knobs through the knob store, which restores them, and reclaims in threads of its own.

#[allow(
    clippy::too_many_lines,
    reason = "left as it is until it is designed anew"
)]
pub mod credits;
pub mod decided;
pub mod journal;
pub mod knob_store;
pub mod protection;
pub mod recharge;
pub mod reclaim;
pub mod watchdog;
