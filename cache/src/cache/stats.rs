//! Statistics of the cache.

use crate::config::{Policy, StoreKind};
use crate::ids::{DiskId, PoolId, VmId};
use crate::ssd_admission::SsdAdmission;
use justitia_api::CurveStatus;
use serde::Serialize;
use std::sync::atomic::{AtomicU64, Ordering};

/// Counters of a pool, and a struct for their values.
macro_rules! counts {
    ($($(#[$doc:meta])* $name:ident,)+) => {
        /// Counts since the cache (or the pool) began. Sums of pools exclude removed pools.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
        pub struct Counts {
            /// Blocks looked up.
            pub gets: u64,
            $($(#[$doc])* pub $name: u64,)+
        }

        impl Counts {
            /// Adds the counts of another pool.
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
    /// Blocks evicted from the cache because the store was full.
    evictions,
    /// Blocks of hybrid pools that went from memory to the SSD.
    demotions,
    /// Blocks of hybrid pools that went from the SSD to memory.
    promotions,
    /// Blocks of hybrid pools that were written to the SSD again, since they were used and would have been evicted soon.
    reinsertions,
    /// Bytes written to the SSD, in whole segments of 64 KiB, even if some of their blocks were removed.
    ssd_write_bytes,
    /// Blocks removed because their content changed on disk.
    invalidations,
    /// Its blocks that a read removed (exclusive mode), whichever pool the read was for.
    taken,
    /// Reads of the disk for missing blocks.
    disk_reads,
    /// The total time of these reads, microseconds.
    disk_wait_us,
    /// Blocks of these reads.
    disk_read_blocks,
    /// Hits whose time is known: the sampled ones, each with the hits that it represents.
    timed_hit_blocks,
    /// The total time of these hits, nanoseconds.
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
    /// Its id.
    pub id: PoolId,
    /// Its name.
    pub name: String,
    /// Its weight among the VM's pools in memory, 1..=10000; 0 when it does not use memory.
    pub memory_weight: u64,
    /// Its weight among the VM's pools on the SSD, 1..=10000; 0 when it does not use the SSD.
    pub ssd_weight: u64,
    /// Its entitlement in memory now, bytes, including what others do not use.
    pub memory_entitlement_bytes: u64,
    /// Its entitlement on the SSD now, likewise.
    pub ssd_entitlement_bytes: u64,
    /// Bytes used in memory.
    pub memory_bytes: u64,
    /// Bytes used on the SSD.
    pub ssd_bytes: u64,
    /// Which of its blocks are admitted to the SSD, by what its reads there save and cost.
    pub ssd_admits: SsdAdmission,
    /// Its counts.
    pub counts: Counts,
    /// Its miss-ratio curve: the misses for other sizes, memory and SSD together, by accesses of the last minutes. `None` while
    /// little was accessed.
    pub curve: Option<CurveStatus>,
}

/// One disk.
#[derive(Clone, Debug, Serialize)]
pub struct DiskStats {
    /// Its id.
    pub id: DiskId,
    /// Its name.
    pub name: String,
    /// The time in which at least one read of the backing store was in flight, microseconds.
    pub read_busy_us: u64,
}

/// One VM.
#[derive(Clone, Debug, Serialize)]
pub struct VmStats {
    /// Its id.
    pub id: VmId,
    /// Its name.
    pub name: String,
    /// Its weight among the VMs, 1..=10000.
    pub weight: u64,
    /// Its eviction policy.
    pub policy: Policy,
    /// Its entitlement in memory now, bytes, including what others do not use.
    pub memory_entitlement_bytes: u64,
    /// Its entitlement on the SSD now, likewise.
    pub ssd_entitlement_bytes: u64,
    /// Its pools; the first is for blocks that belong to no container.
    pub pools: Vec<PoolStats>,
    /// Its disks.
    pub disks: Vec<DiskStats>,
    /// Its residency table; `None` when its guest cannot put.
    pub residency: Option<ResidencyStats>,
}

/// A VM's residency table.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct ResidencyStats {
    /// Blocks whose content is known.
    pub blocks: u64,
    /// Capacity in blocks, 16 bytes each.
    pub capacity_blocks: u64,
}

/// One store.
#[derive(Clone, Debug, Serialize)]
pub struct StoreStats {
    /// Its kind.
    pub store: StoreKind,
    /// Its capacity, bytes.
    pub capacity_bytes: u64,
    /// Bytes in use.
    pub used_bytes: u64,
    /// Memory of the index and of the records of its blocks, bytes; the index counts for the memory store.
    pub metadata_bytes: u64,
    /// Why it has failed, if so; its pools use memory meanwhile.
    pub failed: Option<String>,
    /// Errors of the device so far.
    pub errors: u64,
    /// The time since its device stopped answering reads, milliseconds; `None` while it answers. Disks are read meanwhile.
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
