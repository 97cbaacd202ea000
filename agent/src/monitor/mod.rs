//! Monitoring: from the kernel's counters to a [`Snapshot`](crate::model::Snapshot), at a bounded cost.

mod app_io;
mod cpu_budget;
mod decaying_count;
pub mod device;
mod handover;
mod memory_limits;
mod memory_sampler;
mod probe_drops;
mod rate_window;
mod reclaim_features;
mod reuse;
mod reuse_sampler;
mod schedule;
mod snapshot;
mod switches;
pub(crate) mod system_memory;
mod unmanaged;

pub use app_io::AppIoMonitor;
pub use cpu_budget::{CpuBudget, process_cpu, thread_cpu};
pub use handover::Handover;
pub use justitia_cgroup_tree::{Changes, memory_low};
pub use memory_sampler::{CgroupTree, MemoryCounters, MemorySampler, Node};
pub use rate_window::{WINDOW, WindowStats};
pub use reclaim_features::ReclaimFeatures;
pub use reuse::{RECENT_ACCESSES, Reuse, ReuseCounts};
pub use schedule::Monitor;
pub use switches::Switches;
pub use unmanaged::{UnmanagedReclaim, lru_gen_usable};
