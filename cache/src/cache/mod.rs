//! The cache: VMs, pools, disks and their blocks.
//!
//! Locks, outermost first: the registry of VMs, pools and disks; the change of the SSD store; the admission lock, which
//! puts wait for when a store is full; a pool's policy (two by index); a pool's log; a shard of the index; the leaves
//! (free slots, buffered segments, residency tables, curves). A hit takes one shard; a put that finds a free slot takes one pool and then one shard.

mod admission;
mod admission_lock;
mod busy_time;
mod collect;
mod curve_stats;
mod detached;
mod disk;
mod disks;
mod get;
mod hybrid;
mod insert;
mod invalidate;
mod migrate;
mod partition;
mod pool;
mod pool_curve;
mod pool_worth;
mod pools;
mod reclaim;
mod registry;
mod resize;
mod ssd;
mod ssd_extents;
mod ssd_reads;
mod ssd_writer;
mod state;
mod stats;
mod store_config;
mod stores;
mod verified_put;
mod vms;
mod weight_table;
mod write_guard;

pub use state::Cache;
pub use stats::{CacheStats, Counts, DiskStats, PoolStats, ResidencyStats, StoreStats, VmStats};

pub(crate) use busy_time::DiskRead;
pub(crate) use disk::DiskHandle;
pub(crate) use get::{Lookup, PendingSsdRead};
pub(crate) use pool::PoolHandle;
#[cfg(test)]
pub(crate) use pool_curve::PoolCurve;
pub(crate) use state::random;
pub(crate) use write_guard::WriteGuard;
