//! Pools: created, changed, destroyed, and their part of the whole.

use super::pool::{Pool, PoolHandle};
use super::registry::{MAX_POOLS, PoolTable, Registry};
use super::state::{Cache, check_same_vm, highest_weight};
use super::weight_table::WeightTable;
use crate::block::BLOCK_BYTES;
use crate::config::{Policy, PoolSpec, StoreKind};
use crate::error::CacheError;
use crate::ids::{DiskId, PoolId, VmId};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A pool that is no VM's any more. Its blocks are found until it is dropped with [`Cache::drop_pool`].
#[must_use]
pub(crate) struct ClosedPool(PoolHandle);

impl Cache {
    /// CREATE_CGROUP (the paper, section 4.1): a pool for a container of a VM.
    ///
    /// # Errors
    /// When there is no such VM, or there are too many pools.
    pub fn create_pool(&self, vm: VmId, name: &str, spec: PoolSpec) -> Result<PoolId, CacheError> {
        self.new_pool(&mut self.registry.lock(), vm, name, spec)
    }

    /// SET_CG_WEIGHT: changes a pool's ⟨memory weight, SSD weight⟩. Of a store that it does not use any more its
    /// blocks are still found, and as the pool is entitled to nothing there any more, they are evicted first.
    ///
    /// # Errors
    /// When there is no such pool.
    pub fn set_pool(&self, pool: PoolId, spec: PoolSpec) -> Result<(), CacheError> {
        let registry = self.registry.lock();
        self.pool(pool)?.set_spec(spec);
        self.refresh(&registry);
        Ok(())
    }

    /// Drops what a pool holds in a store. Returns how many bytes became free.
    ///
    /// # Errors
    /// When there is no such pool.
    pub(crate) fn drop_blocks(&self, pool: PoolId, store: StoreKind) -> Result<u64, CacheError> {
        let _registry = self.registry.lock();
        let freed = self.evict(&*self.pool(pool)?, store, u64::from(u32::MAX));
        Ok(freed * BLOCK_BYTES)
    }

    /// DESTROY_CGROUP: removes a pool and its blocks. Others use and change the cache while a large pool is emptied.
    ///
    /// # Errors
    /// When there is no such pool, or it is the VM's first.
    pub fn destroy_pool(&self, pool: PoolId) -> Result<(), CacheError> {
        self.drop_pool(self.close_pool(pool)?);
        Ok(())
    }

    /// The first part of [`destroy_pool`](Self::destroy_pool), which does not take long: takes a pool from its VM. No
    /// block is admitted to it any more, and a second call returns an error.
    ///
    /// # Errors
    /// When there is no such pool, or it is the VM's first.
    pub(crate) fn close_pool(&self, pool: PoolId) -> Result<ClosedPool, CacheError> {
        let mut registry = self.registry.lock();
        let handle = self.pool(pool)?;
        let vm = registry.vm(handle.vm)?;
        match vm.pools.iter().position(|p| p.id == pool) {
            None => return Err(CacheError::NoPool(pool)),
            Some(0) => return Err(CacheError::DefaultPool(pool, handle.vm)),
            Some(at) => vm.pools.remove(at),
        };
        self.refresh(&registry);
        handle.close();
        Ok(ClosedPool(handle))
    }

    /// The second part of [`destroy_pool`](Self::destroy_pool): removes the blocks of a pool, and then the pool. Hold no
    /// lock meanwhile: it may take long.
    pub(crate) fn drop_pool(&self, ClosedPool(pool): ClosedPool) {
        self.empty_pool(&pool);
        let _registry = self.registry.lock();
        self.forget_pool(&pool);
    }

    /// MIGRATE_OBJECT: the cached blocks of the disk in the range `blocks` belong to pool `to` from now on. Returns how
    /// many blocks were reassigned.
    ///
    /// # Errors
    /// When there is no such disk or pool, or they belong to different VMs.
    pub fn migrate(&self, disk: DiskId, blocks: Range<u64>, to: PoolId) -> Result<u64, CacheError> {
        let disk = self.registry.lock().disk(disk)?;
        let to = self.pool(to)?;
        check_same_vm(&disk, &to)?;
        if to.policy.lock().closed {
            return Err(CacheError::NoPool(to.id));
        }
        // Without the registry: blocks of the SSD are read. A disk that is closed meanwhile takes no block, and neither does a
        // pool.
        Ok(self.reassign(&disk, blocks, &to))
    }

    pub(super) fn new_pool(
        &self,
        registry: &mut Registry,
        vm: VmId,
        name: &str,
        spec: PoolSpec,
    ) -> Result<PoolId, CacheError> {
        let policy = registry.vm(vm)?.policy;
        let mut table = PoolTable::clone(&self.pools.load());
        let free = table.iter().position(Option::is_none);
        let at = free.unwrap_or(table.len());
        let index =
            u32::try_from(at)
                .ok()
                .filter(|i| *i < MAX_POOLS)
                .ok_or(CacheError::TooMany {
                    what: "pools",
                    limit: MAX_POOLS,
                })?;
        let id = PoolId {
            index,
            generation: registry.number(),
        };
        let pool = Arc::new(Pool::new(id, vm, name.to_owned(), spec, policy));
        table.resize(table.len().max(at + 1), None);
        table[at] = Some(pool.clone());
        self.pools.store(Arc::new(table));
        registry.vm(vm)?.pools.push(pool);
        self.refresh(registry);
        Ok(id)
    }

    /// Removes what a closed pool holds.
    pub(super) fn empty_pool(&self, pool: &PoolHandle) {
        self.empty_memory(pool);
        self.empty_log(pool);
    }

    /// Removes an empty pool from the table, which changes under the registry's lock: its index may be another's from
    /// now on.
    pub(super) fn forget_pool(&self, pool: &PoolHandle) {
        let mut table = PoolTable::clone(&self.pools.load());
        if let Some(place) = usize::try_from(pool.id.index)
            .ok()
            .and_then(|i| table.get_mut(i))
        {
            *place = None;
        }
        self.pools.store(Arc::new(table));
    }

    fn empty_memory(&self, pool: &PoolHandle) {
        let mut policy = pool.policy.lock();
        policy.set_policy(Policy::Fifo);
        loop {
            let done = policy.evict(&self.stores.memory, &self.index, u32::MAX, None);
            self.return_slots(pool, done.free);
            if policy.len() == 0 {
                return;
            }
            // Slots that are being filled or freed: a matter of microseconds.
            drop(policy);
            std::thread::yield_now();
            policy = pool.policy.lock();
        }
    }

    /// Updates what admission and eviction use when weights, pools or VMs have changed.
    pub(super) fn refresh(&self, registry: &Registry) {
        let vms: Vec<_> = registry
            .vms
            .iter()
            .map(|(id, vm)| (*id, vm.weight, vm.pools.clone()))
            .collect();
        let all: u64 = vms.iter().map(|(_, weight, _)| weight.get()).sum();
        let mut count = 0;
        for (_, weight, pools) in &vms {
            let inside: u64 = pools.iter().map(|p| p.spec().first_weight().get()).sum();
            for pool in pools {
                count += 1;
                let part = weight.get() * pool.spec().first_weight().get();
                pool.set_queue_weight(part, all * inside);
                pool.set_write_weights(*weight);
            }
        }
        // A pool holds up to twice as many free slots: an eighth of what pools have on average at most. A batch of 32 is
        // enough to make the store's lock rare.
        let batch = self.stores.memory.capacity() / 16 / u32::max(count, 1);
        self.batch.store(batch.clamp(1, 32), Ordering::Relaxed);
        let mut weights = self.admission_lock.lock(highest_weight());
        *weights = WeightTable(vms);
        let stores = [StoreKind::Memory, StoreKind::Ssd];
        let capacity = stores.map(|store| self.capacity(store)).iter().sum();
        for store in stores {
            self.divide(&weights, store);
        }
        for pool in weights.0.iter().flat_map(|(_, _, pools)| pools) {
            let entitled = stores.map(|store| pool.entitlement(store)).iter().sum();
            pool.curve.set_size(capacity, entitled);
        }
    }
}
