//! The cache itself: its index, its stores, its pools, and the locks between them.

use super::admission_lock::AdmissionLock;
use super::disk::{DiskHandle, DiskState};
use super::partition::WeightTable;
use super::pool::PoolHandle;
use crate::block::{BLOCK_BYTES, Key};
#[cfg(test)]
use crate::config::StoreKind;
use crate::config::{CacheConfig, Policy};
use crate::error::{CacheError, exact};
use crate::ids::{DiskId, PoolId, VmId};
use crate::index::{Index, Keys, Location, MAX_SLOTS, SlotRef};
use crate::lock_rank::{REGISTRY, Ranked, SSD_CHANGE, SSD_RESIZE};
use crate::residency::Residency;
#[cfg(test)]
use crate::ssd_admission::SsdAdmission;
use crate::store::{MemoryStore, SsdStore};
use arc_swap::{ArcSwap, ArcSwapOption};
use justitia_share::Weight;
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Weak};
use xxhash_rust::xxh3::xxh3_64;

/// The cache.
pub struct Cache {
    pub(super) index: Index,
    pub(super) stores: Stores,
    pub(super) pools: ArcSwap<PoolTable>,
    /// Puts wait for it when a store is full.
    pub(super) admission_lock: AdmissionLock<WeightTable>,
    /// The number of free slots that a pool takes at once.
    pub(super) batch: AtomicU32,
    pub(super) registry: Ranked<Registry, REGISTRY>,
    pub(super) ssd_change: Ranked<(), SSD_CHANGE>,
    /// Held from the beginning of a change of the SSD store to its end, so that there is one at a time.
    pub(super) ssd_resize: Ranked<(), SSD_RESIZE>,
}

impl Cache {
    /// An empty cache.
    ///
    /// # Errors
    /// When a store cannot be allocated.
    pub fn new(config: CacheConfig) -> Result<Arc<Self>, CacheError> {
        Self::in_memory(config, None)
    }

    /// An empty cache. Its memory store uses `memory`, the memory of an earlier one, if given.
    pub(crate) fn in_memory(
        config: CacheConfig,
        memory: Option<File>,
    ) -> Result<Arc<Self>, CacheError> {
        let capacity = memory_slots(config.memory_bytes)?;
        let limit = config.memory_limit.unwrap_or_else(machine_memory);
        let limit = memory_slots(limit)?.max(capacity);
        let reserve = |e: io::Error| {
            let bytes = u64::from(limit) * BLOCK_BYTES;
            CacheError::Refused(format!(
                "cannot reserve {bytes} bytes of address space for the memory store: {e}"
            ))
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
            registry: Ranked::default(),
            ssd_change: Ranked::default(),
            ssd_resize: Ranked::default(),
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

    /// The configuration, with the current sizes and SSD store.
    pub(crate) fn config(&self) -> CacheConfig {
        self.registry.lock().config.clone()
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

    /// A pool's entitlement in a store, blocks, as of the last division.
    #[cfg(test)]
    pub(crate) fn entitled(&self, pool: PoolId, store: StoreKind) -> u64 {
        self.pool(pool).map_or(0, |pool| pool.entitlement(store))
    }

    /// Sets which blocks of a pool are admitted to the SSD.
    #[cfg(test)]
    pub(crate) fn set_ssd_admission(
        &self,
        pool: PoolId,
        admission: SsdAdmission,
    ) -> Result<(), CacheError> {
        self.pool(pool)
            .map(|pool| pool.ssd_admission.set(admission))
    }

    /// The structures that an audit checks.
    #[cfg(test)]
    pub(crate) fn books(&self) -> (&Index, &Stores, Arc<PoolTable>) {
        (&self.index, &self.stores, self.pools.load_full())
    }

    /// Samples at most one block in 2^`min_shift` of each pool from now on.
    #[cfg(any(test, feature = "lab"))]
    pub fn set_min_shift(&self, min_shift: u32) {
        let pools = self.pools.load();
        let curves = pools.iter().flatten().map(|pool| &pool.curve);
        curves.for_each(|curve| curve.set_min_shift(min_shift));
    }

    /// Writes one segment to the SSD store, which has no writer threads. Returns `false` when none is full.
    #[cfg(any(test, feature = "lab"))]
    pub fn write_ssd(&self) -> bool {
        let ssd = self.stores.working_ssd();
        ssd.is_some_and(|ssd| self.write_one(&ssd))
    }
}

pub(super) fn check_same_vm(disk: &DiskHandle, pool: &PoolHandle) -> Result<(), CacheError> {
    if pool.vm == disk.vm {
        return Ok(());
    }
    Err(CacheError::Refused(format!(
        "expected a pool of {}, found {}, which belongs to {}",
        disk.vm, pool.id, pool.vm
    )))
}

/// The limit of `what` is reached.
pub(super) fn too_many(what: &str, limit: u32) -> CacheError {
    CacheError::Refused(format!("expected at most {limit} {what}, found one more"))
}

/// The weight of configuration changes, so that they do not wait behind puts.
pub(super) fn highest_weight() -> Weight {
    Weight::try_from(10_000).unwrap_or_default()
}

/// The number of whole blocks in `bytes`, if an index can name them all.
pub(super) fn memory_slots(bytes: u64) -> Result<u32, CacheError> {
    let slots = u32::try_from(bytes / BLOCK_BYTES).ok();
    slots.filter(|s| *s < MAX_SLOTS).ok_or_else(|| {
        CacheError::Refused(format!(
            "expected at most {} for the memory store, found {}",
            exact(u64::from(MAX_SLOTS - 1) * BLOCK_BYTES),
            exact(bytes)
        ))
    })
}

/// A random number, from the kernel.
pub(crate) fn random() -> io::Result<u64> {
    let mut bytes = [0; 8];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    Ok(u64::from_ne_bytes(bytes))
}

/// The machine's memory, bytes: the default limit of a memory store.
pub(crate) fn machine_memory() -> u64 {
    let info = rustix::system::sysinfo();
    let bytes = u128::from(info.totalram) * u128::from(info.mem_unit);
    u64::try_from(bytes).unwrap_or(u64::MAX).min(1 << 40)
}

// The VMs, pools and disks that the cache knows, and the configuration.

/// The most pools of a cache: the number that a slot's record can name.
pub(super) const MAX_POOLS: u32 = 1 << 19;

/// The registered VMs and disks, under one lock that no get or put takes.
#[derive(Default)]
pub(super) struct Registry {
    pub(super) config: CacheConfig,
    /// Why the configured SSD store could not be opened.
    pub(super) ssd_refused: Option<String>,
    pub(super) vms: BTreeMap<VmId, VmEntry>,
    pub(super) disks: BTreeMap<DiskId, DiskHandle>,
    /// Removed disks that may still be served.
    removed: Vec<Weak<DiskState>>,
    /// The next number; none is used twice.
    next: u32,
}

/// The cache's state of a VM, which owns its weight, its policy and its pools.
pub(super) struct VmEntry {
    pub(super) name: String,
    pub(super) weight: Weight,
    pub(super) policy: Policy,
    pub(super) pools: Vec<PoolHandle>,
    pub(super) disks: Vec<DiskHandle>,
    /// The contents that its guest holds, if tracked.
    pub(super) residency: Option<Arc<Residency>>,
}

/// The pools by index; free places are `None`.
pub(super) type PoolTable = Vec<Option<PoolHandle>>;

impl Registry {
    pub(super) fn number(&mut self) -> u32 {
        self.next += 1;
        self.next
    }

    pub(super) fn vm(&mut self, vm: VmId) -> Result<&mut VmEntry, CacheError> {
        self.vms.get_mut(&vm).ok_or(CacheError::NoVm(vm))
    }

    pub(super) fn disk(&self, disk: DiskId) -> Result<DiskHandle, CacheError> {
        let known = self.disks.get(&disk).cloned();
        known.ok_or(CacheError::NoDisk(disk))
    }

    /// Forgets a disk that is closed and purged.
    pub(super) fn forget_disk(&mut self, disk: &DiskHandle) {
        self.disks.remove(&disk.id);
        self.removed.push(Arc::downgrade(disk));
    }

    /// Derives the number from the name where it is free, so that the next daemon gives the same one and knows the disk's
    /// blocks.
    pub(super) fn add_disk(&mut self, vm: VmId, name: &str) -> Result<DiskId, CacheError> {
        let owner = self.vm(vm)?;
        let wanted = xxh3_64(format!("{}\0{name}", owner.name).as_bytes());
        let first = owner.pools.first().cloned();
        let pool = first.ok_or(CacheError::NoVm(vm))?;
        // A number is free once its last disk can no longer be read.
        self.removed.retain(|disk| disk.strong_count() > 0);
        let removed = self.removed.iter().filter_map(Weak::upgrade);
        let removed = removed.map(|disk| disk.id.number);
        let taken = self.disks.keys().map(|d| d.number).chain(removed);
        let taken: std::collections::BTreeSet<_> = taken.collect();
        let first_number = u32::try_from(wanted % u64::from(Key::MAX_DISKS)).unwrap_or(0);
        let number = (0..Key::MAX_DISKS)
            .map(|n| first_number.wrapping_add(n) % Key::MAX_DISKS)
            .find(|n| !taken.contains(n))
            .ok_or_else(|| too_many("disks", Key::MAX_DISKS))?;
        let id = DiskId {
            number,
            generation: self.number(),
        };
        let owner = self.vm(vm)?;
        let residency = owner.residency.clone();
        let disk = Arc::new(DiskState::new(id, vm, name.to_owned(), pool, residency));
        owner.disks.push(disk.clone());
        self.disks.insert(id, disk);
        Ok(id)
    }
}

// Both stores, as seen by the index.

pub(crate) struct Stores {
    pub(crate) memory: MemoryStore,
    /// The SSD store, in use or failed. The index names slots of this store only: a replaced store is closed and swept out of
    /// the index first.
    pub(crate) ssd: ArcSwapOption<SsdStore>,
}

impl Stores {
    /// The SSD store, if one is open.
    pub(crate) fn working_ssd(&self) -> Option<Arc<SsdStore>> {
        self.ssd.load_full().filter(|ssd| !ssd.closed())
    }
}

impl Keys for Stores {
    fn key(&self, location: Location) -> Key {
        match location.slot() {
            SlotRef::Memory(slot) => self.memory.key(slot),
            SlotRef::Ssd(slot) => self
                .ssd
                .load()
                .as_ref()
                .map_or(Key::from_raw(u64::MAX), |ssd| ssd.key(slot)),
        }
    }
}
