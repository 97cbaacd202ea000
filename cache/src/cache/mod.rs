//! The cache: VMs, pools, disks and their blocks.

mod config;
mod disks;
mod pool;
mod stats;

pub use config::{CacheConfig, Policy, PoolSpec, SsdConfig, StoreKind};
pub use disks::DiskId;
pub use stats::{CacheStats, Counts, DiskStats, PoolStats, StoreStats, VmStats};

pub(crate) use disks::{DiskHandle, DiskState};
pub(crate) use pool::{Pool, PoolHandle};

use crate::block::{BLOCK_BYTES, Block, Key, PoolId, VmId};
use crate::disk::Ticket;
use crate::{CacheError, Weight};
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::Arc;

/// The cache.
pub struct Cache {
    // First cut: one map under one lock, emptied when full.
    blocks: Mutex<HashMap<Key, (PoolHandle, Box<Block>)>>,
    control: Mutex<Control>,
}

#[derive(Default)]
struct Control {
    config: CacheConfig,
    vms: BTreeMap<VmId, Vm>,
    pools: BTreeMap<PoolId, PoolHandle>,
    disks: BTreeMap<DiskId, DiskHandle>,
    next: u32,
}

struct Vm {
    name: String,
    weight: Weight,
    policy: Policy,
    pools: Vec<PoolHandle>,
    disks: Vec<DiskHandle>,
}

impl Cache {
    /// An empty cache.
    ///
    /// # Errors
    /// When a store cannot be had.
    pub fn new(config: CacheConfig) -> Result<Arc<Self>, CacheError> {
        Ok(Arc::new(Self {
            blocks: Mutex::default(),
            control: Mutex::new(Control {
                config,
                ..Control::default()
            }),
        }))
    }

    /// Adds a VM, with one pool in memory for the blocks that belong to no container.
    ///
    /// # Errors
    /// When there are too many pools.
    pub fn add_vm(&self, name: &str, weight: Weight, policy: Policy) -> Result<VmId, CacheError> {
        let mut c = self.control.lock();
        c.next += 1;
        let id = VmId(c.next);
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
        c.create_pool(id, "default", PoolSpec::default())?;
        Ok(id)
    }

    /// Removes a VM with its pools, its disks and all their blocks.
    ///
    /// # Errors
    /// When there is no such VM.
    pub fn remove_vm(&self, vm: VmId) -> Result<(), CacheError> {
        let mut c = self.control.lock();
        let gone = c.vms.remove(&vm).ok_or(CacheError::NoVm(vm))?;
        for disk in gone.disks {
            disk.close();
            c.disks.remove(&disk.id);
        }
        for pool in gone.pools {
            c.pools.remove(&pool.id);
        }
        self.blocks.lock().retain(|_, (pool, _)| pool.vm != vm);
        Ok(())
    }

    /// Changes a VM's weight. The occupancy follows as blocks are put.
    ///
    /// # Errors
    /// When there is no such VM.
    pub fn set_vm_weight(&self, vm: VmId, weight: Weight) -> Result<(), CacheError> {
        self.control.lock().vm(vm)?.weight = weight;
        Ok(())
    }

    /// Changes a VM's eviction policy. Its blocks stay.
    ///
    /// # Errors
    /// When there is no such VM.
    pub fn set_vm_policy(&self, vm: VmId, policy: Policy) -> Result<(), CacheError> {
        self.control.lock().vm(vm)?.policy = policy;
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
        self.control.lock().create_pool(vm, name, spec)
    }

    /// SET_CG_WEIGHT: changes a pool's ⟨store, weight⟩. When the store changes, the pool's blocks are
    /// dropped from the old one.
    ///
    /// # Errors
    /// When there is no such pool.
    pub fn set_pool(&self, pool: PoolId, spec: PoolSpec) -> Result<(), CacheError> {
        self.control.lock().pool(pool)?.set_spec(spec);
        Ok(())
    }

    /// DESTROY_CGROUP: removes a pool and its blocks.
    ///
    /// # Errors
    /// When there is no such pool, or it is the VM's first.
    pub fn destroy_pool(&self, pool: PoolId) -> Result<(), CacheError> {
        let mut c = self.control.lock();
        let handle = c.pool(pool)?;
        let vm = c.vm(handle.vm)?;
        if vm.pools.first().is_some_and(|p| p.id == pool) {
            return Err(CacheError::DefaultPool(pool, handle.vm));
        }
        vm.pools.retain(|p| p.id != pool);
        c.pools.remove(&pool);
        self.blocks.lock().retain(|_, (p, _)| p.id != pool);
        Ok(())
    }

    /// MIGRATE_OBJECT: what the cache holds of the disk's `blocks` belongs to `to` from now on. Returns how
    /// many blocks changed hands.
    ///
    /// # Errors
    /// When there is no such disk or pool, or they belong to different VMs.
    pub fn migrate(&self, disk: DiskId, blocks: Range<u64>, to: PoolId) -> Result<u64, CacheError> {
        let c = self.control.lock();
        let disk = c.disk(disk)?;
        let to = c.pool(to)?;
        own(&disk, &to)?;
        let mut count = 0;
        for (key, (pool, _)) in self.blocks.lock().iter_mut() {
            if key.disk() == u64::from(disk.id.number)
                && blocks.contains(&key.block())
                && pool.id != to.id
            {
                *pool = to.clone();
                count += 1;
            }
        }
        Ok(count)
    }

    /// Makes a disk of a VM known. Its blocks are found only through it.
    ///
    /// # Errors
    /// When there is no such VM, or there are too many disks.
    pub fn add_disk(&self, vm: VmId, name: &str) -> Result<DiskId, CacheError> {
        let mut c = self.control.lock();
        c.next += 1;
        let number = (0..Key::MAX_DISKS)
            .find(|n| !c.disks.keys().any(|d| d.number == *n))
            .ok_or(CacheError::TooMany {
                what: "disks",
                limit: Key::MAX_DISKS,
            })?;
        let id = DiskId {
            number,
            generation: c.next,
        };
        let first = c.vm(vm)?.pools.first().cloned();
        let pool = first.ok_or(CacheError::NoVm(vm))?;
        let disk = Arc::new(DiskState::new(id, vm, name.to_owned(), pool));
        c.vm(vm)?.disks.push(disk.clone());
        c.disks.insert(id, disk);
        Ok(id)
    }

    /// Forgets a disk and its blocks. A [`CachedDisk`](crate::CachedDisk) that still serves it goes on
    /// uncached.
    ///
    /// # Errors
    /// When there is no such disk.
    pub fn remove_disk(&self, disk: DiskId) -> Result<(), CacheError> {
        let mut c = self.control.lock();
        let gone = c.disk(disk)?;
        gone.close();
        c.disks.remove(&disk);
        c.vm(gone.vm)?.disks.retain(|d| d.id != disk);
        self.invalidate(&gone, 0..u64::MAX);
        Ok(())
    }

    /// Changes the size of a store, in bytes; when it shrinks, what is too much is evicted before this
    /// returns.
    ///
    /// # Errors
    /// When the store cannot have that size.
    pub fn resize(&self, store: StoreKind, bytes: u64) -> Result<(), CacheError> {
        let mut c = self.control.lock();
        match store {
            StoreKind::Memory => c.config.memory_bytes = bytes,
            StoreKind::Ssd => {
                if let Some(ssd) = &mut c.config.ssd {
                    ssd.bytes = bytes;
                }
            }
        }
        Ok(())
    }

    /// Replaces the SSD store, or takes it away; its blocks are dropped. Also how a failed one is put back.
    ///
    /// # Errors
    /// When the new one cannot be used; there is none then.
    pub fn set_ssd(&self, ssd: Option<SsdConfig>) -> Result<(), CacheError> {
        self.control.lock().config.ssd = ssd;
        Ok(())
    }

    /// GET_STATS: everything there is to tell.
    #[must_use]
    pub fn stats(&self) -> CacheStats {
        let c = self.control.lock();
        let blocks = self.blocks.lock();
        let held = |pool: &PoolHandle| {
            let n = blocks.values().filter(|(p, _)| p.id == pool.id).count();
            u64::try_from(n).unwrap_or(u64::MAX) * BLOCK_BYTES
        };
        let used = u64::try_from(blocks.len()).unwrap_or(u64::MAX) * BLOCK_BYTES;
        CacheStats {
            stores: vec![StoreStats {
                store: StoreKind::Memory,
                capacity_bytes: c.config.memory_bytes,
                used_bytes: used,
                metadata_bytes: 0,
                failed: None,
                errors: 0,
            }],
            vms: c
                .vms
                .iter()
                .map(|(id, vm)| VmStats {
                    id: *id,
                    name: vm.name.clone(),
                    weight: vm.weight.get(),
                    policy: vm.policy,
                    pools: vm
                        .pools
                        .iter()
                        .map(|p| PoolStats {
                            id: p.id,
                            name: p.name.clone(),
                            store: p.store(),
                            weight: p.weight().get(),
                            entitlement_bytes: 0,
                            memory_bytes: held(p),
                            ssd_bytes: 0,
                            counts: p.count.read(),
                        })
                        .collect(),
                    disks: vm
                        .disks
                        .iter()
                        .map(|d| DiskStats {
                            id: d.id,
                            name: d.name.clone(),
                        })
                        .collect(),
                })
                .collect(),
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
        let pool = self.control.lock().pool(pool)?;
        own(disk, &pool)?;
        Ok(pool)
    }

    /// Copies a part of a block out, if the cache has it; it stays.
    pub(crate) fn read(
        &self,
        disk: &DiskHandle,
        pool: &PoolHandle,
        block: u64,
        at: usize,
        piece: &mut [u8],
    ) -> bool {
        pool.count.gets.add(1);
        let Some(key) = disk.key(block) else {
            return false;
        };
        let blocks = self.blocks.lock();
        let Some((_, content)) = blocks.get(&key) else {
            return false;
        };
        piece.copy_from_slice(&content[at..at + piece.len()]);
        pool.count.memory_hits.add(1);
        true
    }

    /// Copies a part of a block out, if the cache has it, and takes the block out.
    pub(crate) fn take(
        &self,
        disk: &DiskHandle,
        pool: &PoolHandle,
        block: u64,
        at: usize,
        piece: &mut [u8],
    ) -> bool {
        let hit = self.read(disk, pool, block, at, piece);
        if let (true, Some(key)) = (hit, disk.key(block)) {
            self.blocks.lock().remove(&key);
        }
        hit
    }

    pub(crate) fn holds(&self, disk: &DiskHandle, block: u64) -> bool {
        disk.key(block)
            .is_some_and(|key| self.blocks.lock().contains_key(&key))
    }

    /// Inserts a block that was read under `ticket`; `false` when it was not.
    pub(crate) fn insert(
        &self,
        disk: &DiskHandle,
        pool: &PoolHandle,
        block: u64,
        content: &Block,
        ticket: Ticket,
    ) -> bool {
        let room = self.control.lock().config.memory_bytes / BLOCK_BYTES;
        let mut blocks = self.blocks.lock();
        let Some(key) = disk.key(block).filter(|_| disk.good(block, ticket)) else {
            pool.count.puts_dropped.add(1);
            return false;
        };
        if u64::try_from(blocks.len()).unwrap_or(u64::MAX) >= room {
            blocks.clear();
        }
        if room > 0 {
            blocks.insert(key, (pool.clone(), Box::new(*content)));
            pool.count.puts.add(1);
        }
        room > 0
    }

    /// Removes what the cache holds of the disk's `blocks`.
    pub(crate) fn invalidate(&self, disk: &DiskHandle, range: Range<u64>) {
        self.blocks.lock().retain(|key, _| {
            key.disk() != u64::from(disk.id.number) || !range.contains(&key.block())
        });
    }
}

fn own(disk: &DiskHandle, pool: &PoolHandle) -> Result<(), CacheError> {
    if pool.vm == disk.vm {
        return Ok(());
    }
    Err(CacheError::ForeignPool {
        expected: disk.vm,
        pool: pool.id,
        found: pool.vm,
    })
}

impl Control {
    fn vm(&mut self, vm: VmId) -> Result<&mut Vm, CacheError> {
        self.vms.get_mut(&vm).ok_or(CacheError::NoVm(vm))
    }

    fn pool(&self, pool: PoolId) -> Result<PoolHandle, CacheError> {
        self.pools
            .get(&pool)
            .cloned()
            .ok_or(CacheError::NoPool(pool))
    }

    fn disk(&self, disk: DiskId) -> Result<DiskHandle, CacheError> {
        self.disks
            .get(&disk)
            .cloned()
            .ok_or(CacheError::NoDisk(disk))
    }

    fn create_pool(&mut self, vm: VmId, name: &str, spec: PoolSpec) -> Result<PoolId, CacheError> {
        self.next += 1;
        let id = PoolId {
            index: self.next,
            generation: self.next,
        };
        let pool = Arc::new(Pool::new(id, vm, name.to_owned(), spec));
        self.vm(vm)?.pools.push(pool.clone());
        self.pools.insert(id, pool);
        Ok(id)
    }
}
