//! The machine, and what the agent takes of it.

use serde::{Deserialize, Serialize};

/// The machine's memory.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct MemoryStatus {
    /// All of it.
    pub total: u64,
    /// Free now.
    pub free: u64,
    /// The free memory that the agent keeps available: below it, file pages above an entitlement are reclaimed.
    pub free_headroom: u64,
    /// How fast it is being used up, bytes per second.
    pub consumption_rate: u64,
    /// What is divided: all file pages, and the free memory above the headroom.
    pub cache_divisible: u64,
}

/// What the probes lost.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProbeDrops {
    /// `events` that no probe could count; those for whose cgroup there was no `room`, or that came while
    /// the kernel was `busy`, and are no tenant's; uses of `shared_files` that
    /// were forgotten.
    pub what: String,
    /// How many.
    pub count: u64,
}

/// What the agent uses.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct AgentUsage {
    /// CPU time so far, seconds, reclaim included.
    pub cpu: f64,
    /// CPU time of observing and planning alone, seconds.
    pub cpu_loop: f64,
    /// Resident memory.
    pub resident: u64,
    /// Knobs owned by the knob store.
    pub knobs: u64,
    /// Bytes reclaimed so far.
    pub reclaimed: u64,
    /// Requests of reclaim that the kernel refused.
    pub errors: u64,
    /// Reads of the probes' counters that failed. Not in recordings.
    #[serde(default)]
    pub probe_read_errors: u64,
}
