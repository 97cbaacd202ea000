//! The constants of the agent's policy that explanations refer to.

use serde::{Deserialize, Serialize};

/// The constants by which the agent decides, as far as an explanation needs them.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct PolicyStatus {
    /// For how long a tenant is observed before cache that it did not use counts as unused, seconds.
    pub min_observation: f64,
    /// A backlogged tenant reads or writes in at least this fraction of the window's seconds, or is stalled on I/O for at
    /// least this fraction of its time, 0 to 1.
    pub backlogged_active: f64,
    /// It is stalled on I/O for at least this fraction of the time, 0 to 1.
    pub backlogged_stalled: f64,
    /// `memory.low` is written again when it is off by more than one in so many of its value …
    pub low_deadband: u64,
    /// … and by more than so many bytes.
    pub low_min_deadband: u64,
    /// Those of device bandwidth; `None` of agents that do not tell them, and in recordings.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub io: Option<IoPolicyStatus>,
}

/// The constants by which `io.max` and `memory.high` are decided. Fractions 0 to 1, amounts in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct IoPolicyStatus {
    /// The fraction of a disk's time that is not handed out, so that its queue stays short.
    pub reserved: f64,
    /// The same, at most, while the queue is too long.
    pub max_reserved: f64,
    /// Reads and writes may each exceed their recent fraction of a tenant's time by this fraction of that time …
    pub direction_margin: f64,
    /// … and get at least this fraction of it.
    pub min_direction: f64,
    /// No limit is lower, bytes per second.
    pub min_rate: u64,
    /// No limit is lower, requests per second.
    pub min_requests: u64,
    /// No buffered writer has a smaller dirty budget.
    pub min_dirty_budget: u64,
    /// At most one in so many of a writer's bytes are reclaimed in one step.
    pub reclaim_step: u64,
    /// `memory.high` is written again when it is off by more than one in so many of its value.
    pub high_deadband: u64,
    /// While more than one in so many of the divided bytes are free, a writer keeps more than its budget …
    pub ample_free: u64,
    /// … up to so many times the budget.
    pub ample_budget: f64,
}

impl Default for PolicyStatus {
    /// The constants of agents that do not tell them: status version 1, and recordings.
    fn default() -> Self {
        Self {
            min_observation: 120.0,
            backlogged_active: 0.8,
            backlogged_stalled: 0.1,
            low_deadband: 32,
            low_min_deadband: 1 << 20,
            io: None,
        }
    }
}

impl PolicyStatus {
    /// By how much `memory.low` may be off before it is written again, bytes.
    #[must_use]
    pub fn low_deadband(&self, goal: u64) -> u64 {
        (goal / self.low_deadband.max(1)).max(self.low_min_deadband)
    }
}
