//! The constants of the agent's policy that explanations refer to.

use serde::{Deserialize, Serialize};

/// The constants by which the agent decides, as far as an explanation needs them.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct PolicyStatus {
    /// For how long a tenant is observed before cache that it did not use counts as unused, seconds.
    pub min_observation: f64,
    /// A backlogged tenant does I/O in at least this fraction of the window's seconds, 0 to 1.
    pub backlogged_active: f64,
    /// It is stalled on I/O for at least this fraction of the time, 0 to 1.
    pub backlogged_stalled: f64,
    /// `memory.low` is written again when it is off by more than one in so many of its value …
    pub low_deadband: u64,
    /// … and by more than so many bytes.
    pub low_min_deadband: u64,
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
