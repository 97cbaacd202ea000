//! The cache: VMs, pools, disks and their blocks.
//!
//! Locks, outermost first:
//!
//! 1. outside of the cache: the daemon's VMs (`VmRegistry`), then the pools of a VM by name (`VmPools`)
//! 2. a change of the SSD store from its beginning to its end (`ssd_resize`), then the registry of VMs, pools and disks
//! 3. the change of the SSD store
//! 4. the admission lock, which puts wait for when a store is full
//! 5. a pool's policy, two by index
//! 6. a pool's log
//! 7. a shard of the index
//! 8. leaves, of which a thread holds one: free slots, buffered segments, residency tables, curves, a pool's `spec`, the
//!    `state` of its `PoolWorth`, a disk's `BusyTime`, the `turns` of the admission lock
//!
//! A hit takes one shard; an exclusive one then the policy or the log of the block's pool. A sampled block also takes the
//! curve of the reader's pool, and one of a VM with a port a place of the residency table. A put that finds a free slot
//! takes one pool's policy and then one shard. A miss that fills the cache takes what a put takes, on the thread of its
//! client.
//!
//! No discard is made under the registry, the admission lock or a log, and an SSD store that shrinks waits for writes under
//! none of them: extents are retired, and discarded after that.
//!
//! Front ends hold none of these while they take their own: a VM's queue before the state of the workers; a queue of
//! completions; the exports.

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
mod restore;
mod save;
mod ssd;
mod ssd_extents;
mod ssd_reads;
mod ssd_watch;
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
