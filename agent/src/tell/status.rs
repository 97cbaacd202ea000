//! The answer to `justitia status`: plain data, the same for people and machines.

use serde::{Deserialize, Serialize};

/// Everything that the agent tells. Amounts in bytes, times in seconds.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Status {
    /// The agent's version.
    pub version: String,
    /// Whether it only observes.
    pub observe: bool,
    /// For how long it has run.
    pub uptime: f64,
    /// The machine's memory.
    pub memory: MemoryStatus,
    /// Every tenant, parents first; the one outside any cgroup last.
    pub tenants: Vec<TenantStatus>,
    /// Knobs that belong to others.
    pub yielded: Vec<Yield>,
    /// The last decisions, oldest first.
    pub decisions: Vec<Decision>,
    /// What works less well than it could, and the fact that is the cause.
    pub limits: Vec<String>,
    /// What the agent itself costs.
    pub cost: Cost,
}

/// The machine's memory.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct MemoryStatus {
    /// All of it.
    pub total: u64,
    /// Free now.
    pub free: u64,
    /// Below this, tenants above their entitlement give back.
    pub reserve: u64,
    /// How fast it is being used up, bytes per second.
    pub falling: u64,
    /// What is divided: all file pages, and the free memory above the reserve.
    pub capacity: u64,
}

/// One tenant.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct TenantStatus {
    /// Its path below the cgroup mount, bytes outside printable ASCII as `\xNN`; `-` for what is outside.
    pub path: String,
    /// Its cgroup id; 0 for what is outside.
    pub id: u64,
    /// Its weight among its siblings.
    pub weight: u64,
    /// Whether its pages are counted here (a leaf) or below.
    pub leaf: bool,
    /// Its file pages, for an inner node those of its leaves.
    pub usage: u64,
    /// What it is entitled to.
    pub entitled: u64,
    /// What of that is protected from the kernel's reclaim.
    pub protected: u64,
    /// What is never taken.
    pub floor: u64,
    /// Seconds since it last used its cache, as far as the kernel's counters tell.
    pub idle: f64,
    /// Whether its cache wants to grow.
    pub growing: bool,
    /// Why nothing is taken from it now, if so.
    pub spared: Option<String>,
    /// What has been taken from it so far.
    pub reclaimed: u64,
}

/// A knob that someone else has written.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Yield {
    /// The cgroup's path.
    pub path: String,
    /// The knob.
    pub knob: String,
    /// What was found there.
    pub found: String,
}

/// Something that was decided.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Decision {
    /// Seconds since the agent started.
    pub at: f64,
    /// About whom.
    pub path: String,
    /// What was done, or would be in observe mode.
    pub what: String,
    /// The facts behind it.
    pub why: String,
}

/// What the agent costs.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Cost {
    /// CPU time so far, seconds, reclaim included.
    pub cpu: f64,
    /// CPU time of observing and planning alone, seconds.
    pub cpu_loop: f64,
    /// Resident memory.
    pub resident: u64,
    /// Knobs held in the ledger.
    pub knobs: u64,
    /// Bytes reclaimed so far.
    pub reclaimed: u64,
    /// Reclaim orders that the kernel refused.
    pub errors: u64,
}
