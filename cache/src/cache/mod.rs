//! The cache: VMs, pools, disks and their blocks.
//!
//! Its locks, and the order in which they are taken: [`crate::lock_rank`].

mod admission_lock;
mod collect;
mod disk;
mod get;
mod hybrid;
mod partition;
mod pool;
mod pool_curve;
mod put;
mod reclaim;
mod remove;
mod ssd;
mod ssd_threads;
mod state;
mod stats;
mod vms;
mod warm_restart;

pub use state::Cache;
pub use stats::{CacheStats, Counts, DiskStats, PoolStats, ResidencyStats, StoreStats, VmStats};

pub(crate) use disk::{DiskHandle, DiskRead, WriteGuard};
pub(crate) use get::{Lookup, PendingSsdRead};
pub(crate) use pool::PoolHandle;
pub(crate) use state::{machine_memory, random};
pub(crate) use stats::Counter;
