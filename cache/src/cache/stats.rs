//! Statistics of the cache.

use crate::config::{Policy, StoreKind};
use crate::ids::{DiskId, PoolId, VmId};
use crate::ssd_admission::SsdAdmission;
use justitia_api::CurveStatus;
use serde::Serialize;
use std::sync::atomic::{AtomicU64, Ordering};

/// Counters of a pool, and what they are read into.
macro_rules! counts {
    ($($(#[$doc:meta])* $name:ident,)+) => {
        /// Counts since the cache (or the pool) began. Sums of pools: removed pools are not in them.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
        pub struct Counts {
            /// Blocks looked up.
            pub gets: u64,
            $($(#[$doc])* pub $name: u64,)+
        }

        impl Counts {
            /// Adds those of another pool.
            pub(crate) const fn add(&mut self, more: &Self) {
                self.gets += more.gets;
                $(self.$name += more.$name;)+
            }
        }

        /// Counters of a pool.
        #[derive(Default)]
        pub(crate) struct Counters {
            pub(crate) misses: Counter,
            $(pub(crate) $name: Counter,)+
        }

        impl Counters {
            pub(crate) fn read(&self) -> Counts {
                let counts = Counts {
                    gets: self.misses.get(),
                    $($name: self.$name.get(),)+
                };
                Counts {
                    gets: counts.gets + counts.memory_hits + counts.ssd_hits,
                    ..counts
                }
            }
        }
    };
}

counts! {
    /// Of these, blocks found in memory.
    memory_hits,
    /// Of these, blocks found on the SSD.
    ssd_hits,
    /// Blocks inserted, by a put or by a fill.
    insertions,
    /// Blocks that could not be inserted: no free slot, a racing write, a store that failed, or an SSD that is
    /// not worth it.
    insertions_dropped,
    /// Blocks evicted because the store was full, and cached no more.
    evictions,
    /// Blocks of hybrid pools that went from memory to the SSD.
    demotions,
    /// Blocks of hybrid pools that went from the SSD to memory.
    promotions,
    /// Blocks of hybrid pools that were written to the SSD again, since they were used and would have been evicted soon.
    reinsertions,
    /// Bytes written to the SSD, in segments of 64 KiB, whether all of a segment were still blocks or not.
    ssd_write_bytes,
    /// Blocks removed because their content changed on disk.
    invalidations,
    /// Its blocks that a read took out of it (exclusive mode), whichever pool the read was for.
    taken,
    /// Reads of the disk for blocks that it lacked.
    disk_reads,
    /// How long these took together, microseconds.
    disk_wait_us,
    /// Blocks that these were of.
    disk_read_blocks,
    /// Blocks that were found, as far as their reads were timed: a sample, each for those that it stands for.
    timed_hit_blocks,
    /// How long these took together, nanoseconds.
    timed_hit_ns,
}

/// A number that only grows.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// One pool.
#[derive(Clone, Debug, Serialize)]
pub struct PoolStats {
    /// Which.
    pub id: PoolId,
    /// Its name.
    pub name: String,
    /// Its weight among the VM's pools in memory, 1..=10000; 0 when it does not use memory.
    pub memory_weight: u64,
    /// Its weight among the VM's pools on the SSD, 1..=10000; 0 when it does not use the SSD.
    pub ssd_weight: u64,
    /// What it is entitled to in memory now, bytes (what others do not use is included).
    pub memory_entitlement_bytes: u64,
    /// What it is entitled to on the SSD now, likewise.
    pub ssd_entitlement_bytes: u64,
    /// What it holds in memory, bytes.
    pub memory_bytes: u64,
    /// What it holds on the SSD, bytes.
    pub ssd_bytes: u64,
    /// What of it is admitted to the SSD, by what its reads there save and cost.
    pub ssd_admits: SsdAdmission,
    /// What happened.
    pub counts: Counts,
    /// How many of its gets it would miss with another size, memory and SSD together, of accesses of the last minutes;
    /// `None` while little was accessed.
    pub curve: Option<CurveStatus>,
}

/// One disk.
#[derive(Clone, Debug, Serialize)]
pub struct DiskStats {
    /// Which.
    pub id: DiskId,
    /// Its name.
    pub name: String,
    /// The time in which at least one read of the backing store was under way, microseconds.
    pub read_busy_us: u64,
}

/// One VM.
#[derive(Clone, Debug, Serialize)]
pub struct VmStats {
    /// Which.
    pub id: VmId,
    /// Its name.
    pub name: String,
    /// Its weight among the VMs, 1..=10000.
    pub weight: u64,
    /// Its eviction policy.
    pub policy: Policy,
    /// What it is entitled to in memory now, bytes (what others do not use is included).
    pub memory_entitlement_bytes: u64,
    /// What it is entitled to on the SSD now, likewise.
    pub ssd_entitlement_bytes: u64,
    /// Its pools; the first takes the blocks that belong to no container.
    pub pools: Vec<PoolStats>,
    /// Its disks.
    pub disks: Vec<DiskStats>,
    /// What is known of what its guest holds; `None` when it cannot put.
    pub residency: Option<ResidencyStats>,
}

/// A VM's residency table.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct ResidencyStats {
    /// Blocks whose content is known.
    pub blocks: u64,
    /// Blocks that can be known, 16 bytes each.
    pub capacity_blocks: u64,
}

/// One store.
#[derive(Clone, Debug, Serialize)]
pub struct StoreStats {
    /// Which.
    pub store: StoreKind,
    /// What it may hold, bytes.
    pub capacity_bytes: u64,
    /// What it holds, bytes.
    pub used_bytes: u64,
    /// Memory of the index and of the records of its blocks, bytes; the index counts for the memory store.
    pub metadata_bytes: u64,
    /// Why it has failed; its pools use memory meanwhile.
    pub failed: Option<String>,
    /// Errors of the device so far.
    pub errors: u64,
    /// For how long its device has not answered a read, milliseconds; `None` while it answers. Disks are read meanwhile.
    pub stalled_ms: Option<u64>,
}

/// Everything.
#[derive(Clone, Debug, Serialize)]
pub struct CacheStats {
    /// The stores: memory first, then the SSD if there is one.
    pub stores: Vec<StoreStats>,
    /// The VMs, in the order in which they were added.
    pub vms: Vec<VmStats>,
}
