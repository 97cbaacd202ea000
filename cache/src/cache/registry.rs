//! The VMs, pools and disks that the cache knows, and the configuration.

use super::disk::{DiskHandle, DiskState};
use super::pool::PoolHandle;
use crate::block::Key;
use crate::config::{CacheConfig, Policy};
use crate::error::CacheError;
use crate::ids::{DiskId, VmId};
use crate::residency::Residency;
use justitia_share::Weight;
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use xxhash_rust::xxh3::xxh3_64;

/// Pools that a cache can have at one time: as many as a slot's record can name.
pub(super) const MAX_POOLS: u32 = 1 << 19;

/// What is known, under one lock that no get or put takes.
#[derive(Default)]
pub(super) struct Registry {
    pub(super) config: CacheConfig,
    /// Why the SSD store that is configured could not be had.
    pub(super) ssd_refused: Option<String>,
    pub(super) vms: BTreeMap<VmId, VmEntry>,
    pub(super) disks: BTreeMap<DiskId, DiskHandle>,
    /// Disks that were removed, which somebody may still serve.
    removed: Vec<Weak<DiskState>>,
    /// Never given twice.
    next: u32,
}

/// What the cache knows of a VM: the one place of its weight, its policy, and its pools.
pub(super) struct VmEntry {
    pub(super) name: String,
    pub(super) weight: Weight,
    pub(super) policy: Policy,
    pub(super) pools: Vec<PoolHandle>,
    pub(super) disks: Vec<DiskHandle>,
    /// What its guest holds, if that is tracked.
    pub(super) residency: Option<Arc<Residency>>,
}

/// The pools by index; places that are free are `None`.
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

    /// Its number follows from its name, as far as it is free: the next daemon gives it the same, and so knows its blocks.
    pub(super) fn add_disk(&mut self, vm: VmId, name: &str) -> Result<DiskId, CacheError> {
        let owner = self.vm(vm)?;
        let wanted = xxh3_64(format!("{}\0{name}", owner.name).as_bytes());
        let first = owner.pools.first().cloned();
        let pool = first.ok_or(CacheError::NoVm(vm))?;
        // A number is free once nobody can look up blocks by it any more.
        self.removed.retain(|disk| disk.strong_count() > 0);
        let removed = self.removed.iter().filter_map(Weak::upgrade);
        let removed = removed.map(|disk| disk.id.number);
        let taken = self.disks.keys().map(|d| d.number).chain(removed);
        let taken: std::collections::BTreeSet<_> = taken.collect();
        let first_number = u32::try_from(wanted % u64::from(Key::MAX_DISKS)).unwrap_or(0);
        let number = (0..Key::MAX_DISKS)
            .map(|n| first_number.wrapping_add(n) % Key::MAX_DISKS)
            .find(|n| !taken.contains(n))
            .ok_or(CacheError::TooMany {
                what: "disks",
                limit: Key::MAX_DISKS,
            })?;
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
