//! Adds, changes and removes VMs, their pools and their disks (the paper, section 4.1), and sets their shares.

use super::disk::DiskHandle;
use super::get::{Lookup, PendingSsdRead};
use super::partition::WeightTable;
use super::pool::{Pool, PoolHandle};
use super::remove::SWEEP_BLOCKS;
use super::state::{
    Cache, MAX_POOLS, PoolTable, Registry, VmEntry, check_same_vm, highest_weight, too_many,
};
#[cfg(any(test, feature = "lab"))]
use crate::block::BLOCK_BYTES;
use crate::block::Key;
use crate::config::{Policy, PoolSpec, StoreKind};
use crate::error::CacheError;
use crate::ids::{DiskId, PoolId, VmId};
use crate::index::{Location, SlotRef};
use crate::store::Page;
use justitia_share::Weight;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl Cache {
    /// Adds a VM, with one pool in memory for the blocks that belong to no container.
    ///
    /// # Errors
    /// When there are too many pools.
    pub fn add_vm(&self, name: &str, weight: Weight, policy: Policy) -> Result<VmId, CacheError> {
        let mut registry = self.registry.lock();
        let id = VmId(registry.number());
        registry.vms.insert(
            id,
            VmEntry {
                name: name.to_owned(),
                weight,
                policy,
                pools: Vec::new(),
                disks: Vec::new(),
                residency: None,
            },
        );
        self.new_pool(&mut registry, id, "default", PoolSpec::default())
            .inspect_err(|_| {
                registry.vms.remove(&id);
            })?;
        Ok(id)
    }

    /// Removes a VM with its pools, its disks and all their blocks. The cache stays usable meanwhile.
    ///
    /// # Errors
    /// When there is no such VM.
    pub fn remove_vm(&self, vm: VmId) -> Result<(), CacheError> {
        let gone = {
            let mut registry = self.registry.lock();
            let gone = registry.vms.remove(&vm).ok_or(CacheError::NoVm(vm))?;
            self.refresh(&registry);
            gone.disks.iter().for_each(|disk| disk.close());
            gone.pools.iter().for_each(|pool| pool.close());
            gone
        };
        // Empty them before taking the lock again: a holder of the lock may wait for slots of these pools.
        gone.disks.iter().for_each(|disk| self.purge(disk));
        gone.pools.iter().for_each(|pool| self.empty_pool(pool));
        let mut registry = self.registry.lock();
        for disk in &gone.disks {
            registry.forget_disk(disk);
        }
        gone.pools.iter().for_each(|pool| self.forget_pool(pool));
        Ok(())
    }

    /// Changes a VM's weight. The occupancy follows as blocks are put.
    ///
    /// # Errors
    /// When there is no such VM.
    pub fn set_vm_weight(&self, vm: VmId, weight: Weight) -> Result<(), CacheError> {
        let mut registry = self.registry.lock();
        registry.vm(vm)?.weight = weight;
        self.refresh(&registry);
        Ok(())
    }

    /// Changes a VM's eviction policy. Its blocks stay.
    ///
    /// # Errors
    /// When there is no such VM.
    pub fn set_vm_policy(&self, vm: VmId, policy: Policy) -> Result<(), CacheError> {
        let mut registry = self.registry.lock();
        let vm = registry.vm(vm)?;
        vm.policy = policy;
        for pool in &vm.pools {
            pool.policy.lock().set_policy(policy);
        }
        Ok(())
    }

    /// A VM's weight and eviction policy.
    ///
    /// # Errors
    /// When there is no such VM.
    pub(crate) fn vm_settings(&self, vm: VmId) -> Result<(Weight, Policy), CacheError> {
        let mut registry = self.registry.lock();
        let vm = registry.vm(vm)?;
        Ok((vm.weight, vm.policy))
    }

    /// The pool for the VM's blocks that belong to no container.
    ///
    /// # Errors
    /// When there is no such VM.
    pub fn default_pool(&self, vm: VmId) -> Result<PoolId, CacheError> {
        let mut registry = self.registry.lock();
        let first = registry.vm(vm)?.pools.first().map(|p| p.id);
        first.ok_or(CacheError::NoVm(vm))
    }
}

/// A pool that was taken from its VM. Its blocks are still found until [`Cache::drop_pool`] drops it.
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

    /// SET_CG_WEIGHT: changes a pool's ⟨memory weight, SSD weight⟩. Its blocks in a store that it no longer uses are still
    /// found. The pool's entitlement there is 0, so they are evicted first.
    ///
    /// # Errors
    /// When there is no such pool.
    pub fn set_pool(&self, pool: PoolId, spec: PoolSpec) -> Result<(), CacheError> {
        let registry = self.registry.lock();
        self.pool(pool)?.set_spec(spec);
        self.refresh(&registry);
        Ok(())
    }

    /// Drops a pool's blocks in a store. Returns how many bytes became free.
    ///
    /// # Errors
    /// When there is no such pool.
    #[cfg(any(test, feature = "lab"))]
    pub fn drop_blocks(&self, pool: PoolId, store: StoreKind) -> Result<u64, CacheError> {
        let _registry = self.registry.lock();
        let freed = self.evict(&*self.pool(pool)?, store, u64::from(u32::MAX));
        Ok(freed * BLOCK_BYTES)
    }

    /// DESTROY_CGROUP: removes a pool and its blocks. The cache stays usable while a large pool is emptied.
    ///
    /// # Errors
    /// When there is no such pool, or it is the VM's first.
    pub fn destroy_pool(&self, pool: PoolId) -> Result<(), CacheError> {
        self.drop_pool(self.close_pool(pool)?);
        Ok(())
    }

    /// The first part of [`destroy_pool`](Self::destroy_pool), which is fast: takes a pool from its VM. The pool admits no
    /// further block, and a second call returns an error.
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

    /// The second part of [`destroy_pool`](Self::destroy_pool): removes the blocks of a pool, then the pool. Call it without
    /// locks: it may take long.
    pub(crate) fn drop_pool(&self, ClosedPool(pool): ClosedPool) {
        self.empty_pool(&pool);
        let _registry = self.registry.lock();
        self.forget_pool(&pool);
    }

    /// MIGRATE_OBJECT: moves the cached blocks of the disk in the range `blocks` to pool `to`. Returns how many blocks were
    /// reassigned.
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
        // Do not hold the registry's lock, since blocks of the SSD are read. A disk or pool that is closed meanwhile accepts no
        // block.
        Ok(self.reassign(&disk, blocks, &to))
    }

    fn new_pool(
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
        let index = u32::try_from(at).ok().filter(|i| *i < MAX_POOLS);
        let index = index.ok_or_else(|| too_many("pools", MAX_POOLS))?;
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

    /// Removes the blocks of a closed pool.
    fn empty_pool(&self, pool: &PoolHandle) {
        self.empty_memory(pool);
        self.empty_log(pool);
    }

    /// Removes an empty pool from the table. Hold the registry's lock. Another pool may reuse the index afterwards.
    fn forget_pool(&self, pool: &PoolHandle) {
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
            // The remaining slots are being filled or freed, which takes microseconds.
            drop(policy);
            std::thread::yield_now();
            policy = pool.policy.lock();
        }
    }

    /// Updates the weights of admission and eviction after a change of weights, pools or VMs.
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
        // A pool holds up to two batches of free slots: at most an eighth of the average pool. With a batch of 32 the store's
        // lock is rarely taken.
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

impl Cache {
    /// Registers a disk of a VM. Its blocks are found only through it.
    ///
    /// # Errors
    /// When there is no such VM, or there are too many disks.
    pub fn add_disk(&self, vm: VmId, name: &str) -> Result<DiskId, CacheError> {
        self.registry.lock().add_disk(vm, name)
    }

    /// Forgets a disk and its blocks. A [`CachedDisk`](crate::CachedDisk) that still serves it goes on uncached. The cache
    /// stays usable meanwhile.
    ///
    /// # Errors
    /// When there is no such disk.
    pub fn remove_disk(&self, disk: DiskId) -> Result<(), CacheError> {
        let gone = {
            let mut registry = self.registry.lock();
            let vm = registry.disk(disk)?.vm;
            let disks = &mut registry.vm(vm).map_err(|_| CacheError::NoDisk(disk))?.disks;
            let at = disks.iter().position(|of_vm| of_vm.id == disk);
            let gone = disks.remove(at.ok_or(CacheError::NoDisk(disk))?);
            gone.close();
            gone
        };
        self.purge(&gone);
        // Only now: its number may be given to another disk once the last reference to this disk is gone.
        self.registry.lock().forget_disk(&gone);
        Ok(())
    }

    /// The disks with their names and ids.
    pub(crate) fn disks(&self) -> Vec<(String, DiskId, VmId)> {
        let registry = self.registry.lock();
        let disks = registry.vms.values().flat_map(|vm| &vm.disks);
        disks.map(|d| (d.name.clone(), d.id, d.vm)).collect()
    }

    /// A disk, and its pool for blocks that belong to no container.
    pub(crate) fn attach(&self, disk: DiskId) -> Result<(DiskHandle, PoolHandle), CacheError> {
        let disk = self.registry.lock().disk(disk)?;
        let pool = disk.default_pool.clone();
        Ok((disk, pool))
    }
}

// MIGRATE_OBJECT: moves blocks between pools.

impl Cache {
    /// Moves the cached blocks of the disk to the pool. Returns how many blocks were reassigned.
    fn reassign(&self, disk: &DiskHandle, blocks: Range<u64>, to: &PoolHandle) -> u64 {
        let mut moved = 0;
        let count = blocks.end.saturating_sub(blocks.start);
        if count > SWEEP_BLOCKS {
            let number = u64::from(disk.id.number);
            let keys = self.index.keys(&self.stores, |key| {
                key.disk() == number && blocks.contains(&key.block())
            });
            for key in keys {
                moved += u64::from(self.reassign_block(disk, key, to));
            }
        } else {
            for key in blocks.map_while(|block| disk.key(block)) {
                moved += u64::from(self.reassign_block(disk, key, to));
            }
        }
        moved
    }

    fn reassign_block(&self, disk: &DiskHandle, key: Key, to: &PoolHandle) -> bool {
        let token = disk.token(key.block());
        let location = {
            let entry = self.index.lock(key);
            entry
                .find(&self.stores)
                .map(|entry_ref| entry.location(entry_ref))
        };
        let Some(location) = location else {
            return false;
        };
        match location.slot() {
            SlotRef::Memory(slot) => self.reassign_slot(key, slot, to),
            SlotRef::Ssd(slot) => {
                // An extent belongs to one pool, so the block is read and put again.
                let from = self.stores.working_ssd().map(|ssd| ssd.pool_of(slot));
                if from.is_none_or(|from| from == to.id.index) {
                    return false;
                }
                let mut page = Page::new();
                let found = match self.look(disk, key.block(), 0, &mut page.0, false) {
                    Lookup::Hit => Some(page),
                    Lookup::Miss => None,
                    Lookup::OnSsd(pending) => self.read_from_ssd(&pending),
                };
                found.is_some_and(|page| {
                    let block = key.block();
                    self.try_insert(disk, to, block, &page.0, token).is_ok()
                })
            }
        }
    }

    fn read_from_ssd(&self, pending: &PendingSsdRead) -> Option<Page> {
        let read = pending.ssd.read(&[(pending.key, pending.read_ref)])?;
        let (result, page) = (
            read.results.into_iter().next()?,
            read.pages.into_iter().next()?,
        );
        self.finish_ssd_read(pending, result, &page).then_some(page)
    }

    fn reassign_slot(&self, key: Key, slot: u32, to: &PoolHandle) -> bool {
        let memory = &self.stores.memory;
        let Some(from) = self.pool_at(memory.meta(slot).pool) else {
            return false;
        };
        if from.id == to.id {
            return false;
        }
        // When locking two pools, take the lower index first.
        let (mut from_policy, mut to_policy) = if from.id.index < to.id.index {
            let a = from.policy.lock();
            (a, to.policy.lock())
        } else {
            let b = to.policy.lock();
            (from.policy.lock(), b)
        };
        let entry = self.index.lock(key);
        let here = entry.find_at(Location::memory(slot)).is_some();
        if !here || memory.meta(slot).pool != from.id.index || to_policy.closed {
            return false;
        }
        from_policy.unlink(memory, slot);
        to_policy.adopt(memory, to.id.index, slot);
        from.memory_used.fetch_sub(1, Ordering::Relaxed);
        to.memory_used.fetch_add(1, Ordering::Relaxed);
        true
    }
}
