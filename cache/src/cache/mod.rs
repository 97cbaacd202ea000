//! The cache: VMs, pools, disks and their blocks.
//!
//! Locks, outermost first: the configuration; the change of the SSD store; the admission_lock, where puts wait for room;
//! a pool's policy or log (two shelves by index); a shard of the index; the leaves (free slots, staged units).
//! A hit takes one shard; a put with room one pool and one shard, after each other.

mod admission;
mod control;
mod disks;
mod ops;
mod partition;
mod pool;
mod resize;
mod ssd;
mod stats;
mod stores;
mod write_guard;

pub use stats::{CacheStats, Counts, DiskStats, PoolStats, StoreStats, VmStats};

pub(crate) use disks::DiskHandle;
pub(crate) use ops::{Lookup, PendingSsdRead};
pub(crate) use pool::PoolHandle;
pub(crate) use write_guard::WriteGuard;

use crate::config::{CacheConfig, Policy, PoolSpec, SsdConfig, StoreKind};
use crate::error::CacheError;
use crate::ids::{DiskId, PoolId, VmId};
use crate::index::Index;
use crate::store::MemoryStore;
use admission::WeightTable;
use arc_swap::{ArcSwap, ArcSwapOption};
use control::{Control, PoolTable, Vm};
use justitia_lock::WeightLock;
use justitia_share::Weight;
use parking_lot::Mutex;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use stores::Stores;

/// The cache.
pub struct Cache {
    index: Index,
    stores: Stores,
    pools: ArcSwap<PoolTable>,
    /// Where puts wait when a store is full.
    admission_lock: WeightLock<WeightTable>,
    /// Free slots that a pool takes at once.
    batch: AtomicU32,
    control: Mutex<Control>,
    ssd_change: Mutex<()>,
}

impl Cache {
    /// An empty cache.
    ///
    /// # Errors
    /// When a store cannot be had.
    pub fn new(config: CacheConfig) -> Result<Arc<Self>, CacheError> {
        let capacity = resize::slots(config.memory_bytes)?;
        let limit = config.memory_limit.unwrap_or_else(machine_memory);
        let limit = resize::slots(limit)?.max(capacity);
        let reserve = |source| CacheError::Reserve {
            bytes: u64::from(limit) * crate::block::BLOCK_BYTES,
            source,
        };
        let cache = Arc::new(Self {
            index: Index::new(ssd::random().map_err(reserve)?),
            stores: Stores {
                memory: MemoryStore::new(capacity, limit).map_err(reserve)?,
                ssd: ArcSwapOption::empty(),
            },
            pools: ArcSwap::default(),
            admission_lock: WeightLock::new(WeightTable::default(), config.order),
            batch: AtomicU32::new(1),
            control: Mutex::default(),
            ssd_change: Mutex::new(()),
        });
        if let Some(ssd) = &config.ssd {
            cache.open_ssd(ssd)?;
        }
        cache.control.lock().config = config;
        Ok(cache)
    }

    /// Adds a VM, with one pool in memory for the blocks that belong to no container.
    ///
    /// # Errors
    /// When there are too many pools.
    pub fn add_vm(&self, name: &str, weight: Weight, policy: Policy) -> Result<VmId, CacheError> {
        let mut c = self.control.lock();
        let id = VmId(c.number());
        c.vms.insert(
            id,
            Vm {
                name: name.to_owned(),
                weight,
                policy,
                pools: Vec::new(),
                disks: Vec::new(),
            },
        );
        self.new_pool(&mut c, id, "default", PoolSpec::default())
            .inspect_err(|_| {
                c.vms.remove(&id);
            })?;
        Ok(id)
    }

    /// Removes a VM with its pools, its disks and all their blocks.
    ///
    /// # Errors
    /// When there is no such VM.
    pub fn remove_vm(&self, vm: VmId) -> Result<(), CacheError> {
        let mut c = self.control.lock();
        let gone = c.vms.remove(&vm).ok_or(CacheError::NoVm(vm))?;
        self.refresh(&c);
        for disk in gone.disks {
            self.purge(&disk);
            c.disks.remove(&disk.id);
        }
        for pool in gone.pools {
            self.end_pool(&pool);
        }
        Ok(())
    }

    /// Changes a VM's weight. The occupancy follows as blocks are put.
    ///
    /// # Errors
    /// When there is no such VM.
    pub fn set_vm_weight(&self, vm: VmId, weight: Weight) -> Result<(), CacheError> {
        let mut c = self.control.lock();
        c.vm(vm)?.weight = weight;
        self.refresh(&c);
        Ok(())
    }

    /// Changes a VM's eviction policy. Its blocks stay.
    ///
    /// # Errors
    /// When there is no such VM.
    pub fn set_vm_policy(&self, vm: VmId, policy: Policy) -> Result<(), CacheError> {
        let mut c = self.control.lock();
        let vm = c.vm(vm)?;
        vm.policy = policy;
        for pool in &vm.pools {
            pool.policy.lock().set_policy(policy);
        }
        Ok(())
    }

    /// The pool that takes the VM's blocks that belong to no container.
    ///
    /// # Errors
    /// When there is no such VM.
    pub fn default_pool(&self, vm: VmId) -> Result<PoolId, CacheError> {
        let mut c = self.control.lock();
        let first = c.vm(vm)?.pools.first().map(|p| p.id);
        first.ok_or(CacheError::NoVm(vm))
    }

    /// CREATE_CGROUP (the paper, section 4.1): a pool for a container of a VM.
    ///
    /// # Errors
    /// When there is no such VM, or there are too many pools.
    pub fn create_pool(&self, vm: VmId, name: &str, spec: PoolSpec) -> Result<PoolId, CacheError> {
        self.new_pool(&mut self.control.lock(), vm, name, spec)
    }

    /// SET_CG_WEIGHT: changes a pool's ⟨store, weight⟩. When the store changes, new blocks go to the new
    /// one; those in the old are still found, and as the pool is entitled to nothing there any more, they
    /// are the first to go when room is needed. [`drop_blocks`](Self::drop_blocks) drops them at once.
    ///
    /// # Errors
    /// When there is no such pool.
    pub fn set_pool(&self, pool: PoolId, spec: PoolSpec) -> Result<(), CacheError> {
        let c = self.control.lock();
        self.pool(pool)?.set_spec(spec);
        self.refresh(&c);
        Ok(())
    }

    /// Drops what a pool holds in a store. Returns how many bytes became free.
    ///
    /// # Errors
    /// When there is no such pool.
    pub fn drop_blocks(&self, pool: PoolId, store: StoreKind) -> Result<u64, CacheError> {
        let _c = self.control.lock();
        let freed = self.evict(&*self.pool(pool)?, store, u64::from(u32::MAX));
        Ok(freed * crate::block::BLOCK_BYTES)
    }

    /// DESTROY_CGROUP: removes a pool and its blocks.
    ///
    /// # Errors
    /// When there is no such pool, or it is the VM's first.
    pub fn destroy_pool(&self, pool: PoolId) -> Result<(), CacheError> {
        let mut c = self.control.lock();
        let handle = self.pool(pool)?;
        let vm = c.vm(handle.vm)?;
        if vm.pools.first().is_some_and(|p| p.id == pool) {
            return Err(CacheError::DefaultPool(pool, handle.vm));
        }
        vm.pools.retain(|p| p.id != pool);
        self.refresh(&c);
        self.end_pool(&handle);
        Ok(())
    }

    /// MIGRATE_OBJECT: what the cache holds of the disk's `blocks` is_target to `to` from now on. Returns how
    /// many blocks changed hands.
    ///
    /// # Errors
    /// When there is no such disk or pool, or they belong to different VMs.
    pub fn migrate(&self, disk: DiskId, blocks: Range<u64>, to: PoolId) -> Result<u64, CacheError> {
        let c = self.control.lock();
        let disk = c.disk(disk)?;
        let to = self.pool(to)?;
        check_same_vm(&disk, &to)?;
        Ok(self.reassign(&disk, blocks, &to))
    }

    /// Makes a disk of a VM known. Its blocks are found only through it.
    ///
    /// # Errors
    /// When there is no such VM, or there are too many disks.
    pub fn add_disk(&self, vm: VmId, name: &str) -> Result<DiskId, CacheError> {
        self.control.lock().add_disk(vm, name)
    }

    /// Forgets a disk and its blocks. A [`CachedDisk`](crate::CachedDisk) that still serves it goes on
    /// uncached.
    ///
    /// # Errors
    /// When there is no such disk.
    pub fn remove_disk(&self, disk: DiskId) -> Result<(), CacheError> {
        let mut c = self.control.lock();
        let gone = c.disk(disk)?;
        c.disks.remove(&disk);
        c.vm(gone.vm)?.disks.retain(|d| d.id != disk);
        self.purge(&gone);
        Ok(())
    }

    /// Changes the size of a store, in bytes; when it shrinks, what is too much is evicted before this
    /// returns. An SSD store that has failed is opened anew, empty.
    ///
    /// # Errors
    /// When the store cannot have that size, or there is no such store.
    pub fn resize(self: &Arc<Self>, store: StoreKind, bytes: u64) -> Result<(), CacheError> {
        let mut c = self.control.lock();
        match store {
            StoreKind::Memory => {
                self.resize_memory(bytes)?;
                c.config.memory_bytes = bytes;
            }
            StoreKind::Ssd => self.size_ssd(&mut c, bytes)?,
        }
        self.refresh(&c);
        Ok(())
    }

    /// Replaces the SSD store, or takes it away; its blocks are dropped.
    ///
    /// # Errors
    /// When the new one cannot be used; there is none then, until [`resize`](Self::resize) opens it.
    pub fn set_ssd(self: &Arc<Self>, ssd: Option<SsdConfig>) -> Result<(), CacheError> {
        let mut c = self.control.lock();
        self.replace_ssd(&mut c, ssd)
    }

    /// What an audit looks into.
    #[cfg(test)]
    pub(crate) fn books(&self) -> (&Index, &Stores, Arc<PoolTable>) {
        (&self.index, &self.stores, self.pools.load_full())
    }

    /// Does a writer's work once, where there are none.
    #[cfg(test)]
    pub(crate) fn write_ssd(&self) {
        if let Some(ssd) = self.stores.working_ssd() {
            self.write_one(&ssd);
        }
    }

    pub(crate) fn attach(&self, disk: DiskId) -> Result<(DiskHandle, PoolHandle), CacheError> {
        let disk = self.control.lock().disk(disk)?;
        let pool = disk.default_pool.clone();
        Ok((disk, pool))
    }

    pub(crate) fn pool_of(
        &self,
        disk: &DiskHandle,
        pool: PoolId,
    ) -> Result<PoolHandle, CacheError> {
        let pool = self.pool(pool)?;
        check_same_vm(&disk, &pool)?;
        Ok(pool)
    }
}

fn check_same_vm(disk: &DiskHandle, pool: &PoolHandle) -> Result<(), CacheError> {
    if pool.vm == disk.vm {
        return Ok(());
    }
    Err(CacheError::ForeignPool {
        expected: disk.vm,
        pool: pool.id,
        found: pool.vm,
    })
}

/// The machine's memory, bytes; what a memory store can grow to unless configured.
fn machine_memory() -> u64 {
    let info = rustix::system::sysinfo();
    let bytes = u128::from(info.totalram) * u128::from(info.mem_unit);
    u64::try_from(bytes).unwrap_or(u64::MAX).min(1 << 40)
}
