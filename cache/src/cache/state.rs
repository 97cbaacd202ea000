//! The cache itself: its index, its stores, its pools, and the locks between them.

use super::admission_lock::AdmissionLock;
use super::disk::DiskHandle;
use super::pool::PoolHandle;
use super::registry::{PoolTable, Registry};
use super::stores::Stores;
use super::weight_table::WeightTable;
use crate::block::BLOCK_BYTES;
use crate::config::CacheConfig;
#[cfg(test)]
use crate::config::StoreKind;
use crate::error::CacheError;
use crate::ids::PoolId;
use crate::index::{Index, MAX_SLOTS};
use crate::store::MemoryStore;
#[cfg(test)]
use crate::worth::SsdAdmission;
use arc_swap::{ArcSwap, ArcSwapOption};
use justitia_share::Weight;
use parking_lot::Mutex;
use std::fs::File;
use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

/// The cache.
pub struct Cache {
    pub(super) index: Index,
    pub(super) stores: Stores,
    pub(super) pools: ArcSwap<PoolTable>,
    /// Puts wait for it when a store is full.
    pub(super) admission_lock: AdmissionLock<WeightTable>,
    /// Free slots that a pool takes at once.
    pub(super) batch: AtomicU32,
    pub(super) registry: Mutex<Registry>,
    pub(super) ssd_change: Mutex<()>,
    /// Held from the beginning of a change of the SSD store to its end, so that there is one at a time.
    pub(super) ssd_resize: Mutex<()>,
}

impl Cache {
    /// An empty cache.
    ///
    /// # Errors
    /// When a store cannot be had.
    pub fn new(config: CacheConfig) -> Result<Arc<Self>, CacheError> {
        Self::in_memory(config, None)
    }

    /// An empty cache, whose memory store is the memory of an earlier one if that is given.
    pub(crate) fn in_memory(
        config: CacheConfig,
        memory: Option<File>,
    ) -> Result<Arc<Self>, CacheError> {
        let capacity = memory_slots(config.memory_bytes)?;
        let limit = config.memory_limit.unwrap_or_else(machine_memory);
        let limit = memory_slots(limit)?.max(capacity);
        let reserve = |source| CacheError::Reserve {
            bytes: u64::from(limit) * BLOCK_BYTES,
            source,
        };
        let cache = Arc::new(Self {
            index: Index::new(random().map_err(reserve)?),
            stores: Stores {
                memory: MemoryStore::new(capacity, limit, memory).map_err(reserve)?,
                ssd: ArcSwapOption::empty(),
            },
            pools: ArcSwap::default(),
            admission_lock: AdmissionLock::default(),
            batch: AtomicU32::new(1),
            registry: Mutex::default(),
            ssd_change: Mutex::new(()),
            ssd_resize: Mutex::new(()),
        });
        if let Some(ssd) = &config.ssd {
            cache.open_ssd(ssd)?;
        }
        cache.registry.lock().config = config;
        Ok(cache)
    }

    /// The pool at an index of the table.
    pub(super) fn pool_at(&self, index: u32) -> Option<PoolHandle> {
        let index = usize::try_from(index).ok()?;
        self.pools.load().get(index).cloned().flatten()
    }

    /// The pool of this id, if it still exists.
    pub(crate) fn pool(&self, id: PoolId) -> Result<PoolHandle, CacheError> {
        self.pool_at(id.index)
            .filter(|pool| pool.id == id)
            .ok_or(CacheError::NoPool(id))
    }

    /// A pool of the disk's VM.
    pub(crate) fn pool_of(
        &self,
        disk: &DiskHandle,
        pool: PoolId,
    ) -> Result<PoolHandle, CacheError> {
        let pool = self.pool(pool)?;
        check_same_vm(disk, &pool)?;
        Ok(pool)
    }

    /// What a pool is entitled to of a store, blocks, as of the last division.
    #[cfg(test)]
    pub(crate) fn entitled(&self, pool: PoolId, store: StoreKind) -> u64 {
        self.pool(pool).map_or(0, |pool| pool.entitlement(store))
    }

    /// Decides what of a pool is admitted to the SSD.
    #[cfg(test)]
    pub(crate) fn set_worth(&self, pool: PoolId, worth: SsdAdmission) -> Result<(), CacheError> {
        self.pool(pool).map(|pool| pool.worth.set(worth))
    }

    /// What an audit checks.
    #[cfg(test)]
    pub(crate) fn books(&self) -> (&Index, &Stores, Arc<PoolTable>) {
        (&self.index, &self.stores, self.pools.load_full())
    }

    /// At most one block in 2^this is sampled of each pool from now on.
    #[cfg(test)]
    pub(crate) fn set_min_shift(&self, min_shift: u32) {
        let pools = self.pools.load();
        let curves = pools.iter().flatten().map(|pool| &pool.curve);
        curves.for_each(|curve| curve.set_min_shift(min_shift));
    }

    /// Writes one segment to the SSD store, where there are no writer threads; `false` when none is full.
    pub(crate) fn write_ssd(&self) -> bool {
        let ssd = self.stores.working_ssd();
        ssd.is_some_and(|ssd| self.write_one(&ssd))
    }
}

pub(super) fn check_same_vm(disk: &DiskHandle, pool: &PoolHandle) -> Result<(), CacheError> {
    if pool.vm == disk.vm {
        return Ok(());
    }
    Err(CacheError::ForeignPool {
        expected: disk.vm,
        pool: pool.id,
        found: pool.vm,
    })
}

/// Changes of the configuration do not wait behind puts.
pub(super) fn highest_weight() -> Weight {
    Weight::try_from(10_000).unwrap_or_default()
}

/// Whole blocks in this many bytes, if an index can name them all.
pub(super) fn memory_slots(bytes: u64) -> Result<u32, CacheError> {
    u32::try_from(bytes / BLOCK_BYTES)
        .ok()
        .filter(|s| *s < MAX_SLOTS)
        .ok_or(CacheError::MemorySize {
            limit: u64::from(MAX_SLOTS - 1) * BLOCK_BYTES,
            found: bytes,
        })
}

/// A random number, from the kernel.
pub(crate) fn random() -> io::Result<u64> {
    let mut bytes = [0; 8];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    Ok(u64::from_ne_bytes(bytes))
}

/// The machine's memory, bytes; what a memory store can grow to unless configured.
fn machine_memory() -> u64 {
    let info = rustix::system::sysinfo();
    let bytes = u128::from(info.totalram) * u128::from(info.mem_unit);
    u64::try_from(bytes).unwrap_or(u64::MAX).min(1 << 40)
}
