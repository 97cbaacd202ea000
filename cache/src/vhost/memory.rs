//! The guest's memory, as the front end describes it.

use super::limits::MAX_MEMORY_SLOTS;
use super::sigbus::Guard;
use crate::frontend::{Amount, Budget, BudgetShare, OverBudget};
use rustix::fs::{SealFlags, fstat, fstatfs};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use vm_memory::{
    GuestAddress, GuestMemoryBackend, GuestMemoryError, GuestMemoryRegion, GuestMemoryRegionBytes,
    GuestRegionCollection, MemoryRegionAddress, VolatileSlice,
};

/// A version of the guest's memory. A request keeps the version that it was taken under.
pub(crate) type GuestMemory = GuestRegionCollection<GuestRegion>;

/// Has the front end truncated some of it? Later reads of that part return zeroes.
pub(super) fn is_lost(memory: &GuestMemory) -> bool {
    memory.iter().any(|region| region.mapping.is_lost())
}

/// A mapped region of it.
#[derive(Debug)]
pub(crate) struct GuestRegion {
    mapping: Mapping,
    start: GuestAddress,
    /// Bytes.
    size: u64,
}

impl GuestRegion {
    /// A mapping that the guest has at `start`.
    pub(crate) fn new(mapping: Mapping, start: u64) -> Option<Self> {
        let size = u64::try_from(mapping.size()).ok()?;
        start.checked_add(size)?;
        let start = GuestAddress(start);
        Some(Self {
            mapping,
            start,
            size,
        })
    }
}

impl GuestMemoryRegion for GuestRegion {
    type B = ();

    fn len(&self) -> u64 {
        self.size
    }

    fn start_addr(&self) -> GuestAddress {
        self.start
    }

    fn bitmap(&self) {}

    fn get_slice(
        &self,
        offset: MemoryRegionAddress,
        count: usize,
    ) -> Result<VolatileSlice<'_>, GuestMemoryError> {
        let offset =
            usize::try_from(offset.0).map_err(|_| GuestMemoryError::InvalidBackendAddress)?;
        let slice = self.mapping.slice();
        let part = slice.subslice(offset, count)?;
        Ok(part)
    }
}

impl GuestMemoryRegionBytes for GuestRegion {}

/// A region of the guest's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Region {
    /// Its guest-physical address.
    pub(super) guest: u64,
    /// Bytes.
    pub(super) size: u64,
    /// Its address in the front end, which gives addresses of rings in this form.
    pub(super) user: u64,
    /// Its offset in its file.
    pub(super) offset: u64,
}

impl Region {
    fn is_valid(&self) -> bool {
        self.size > 0
            && self.guest.checked_add(self.size).is_some()
            && self.user.checked_add(self.size).is_some()
            && self.offset.checked_add(self.size).is_some()
    }

    /// Do both overlap in the guest? Both must be valid.
    const fn overlaps(&self, other: &Self) -> bool {
        self.guest < other.guest + other.size && other.guest < self.guest + self.size
    }
}

/// A region in use.
struct Slot {
    region: Region,
    memory: Arc<GuestRegion>,
    /// The file as received, for the next daemon.
    file: File,
    /// The file's share of the budget.
    _share: BudgetShare,
}

/// The regions, which together are the guest's memory.
pub(super) struct MemorySlots {
    slots: Vec<Slot>,
    budget: Arc<Budget>,
}

impl MemorySlots {
    /// No regions yet. Mappings take a share of the budget, until their last use ends.
    pub(super) const fn new(budget: Arc<Budget>) -> Self {
        let slots = Vec::new();
        Self { slots, budget }
    }

    /// Replaces all regions.
    ///
    /// # Errors
    /// When one cannot be used; the old ones stay then.
    pub(super) fn replace(
        &mut self,
        regions: impl IntoIterator<Item = (Region, File)>,
    ) -> Result<Arc<GuestMemory>, MemoryError> {
        let mut new = Self::new(Arc::clone(&self.budget));
        for (region, file) in regions {
            new.insert(region, file)?;
        }
        let memory = new.memory()?;
        *self = new;
        Ok(memory)
    }

    /// Adds a region.
    ///
    /// # Errors
    /// When it cannot be used.
    pub(super) fn add(
        &mut self,
        region: Region,
        file: File,
    ) -> Result<Arc<GuestMemory>, MemoryError> {
        self.insert(region, file)?;
        self.memory().inspect_err(|_| {
            self.slots.retain(|slot| slot.region != region);
        })
    }

    /// Removes a region. Its offset need not match the added one (QEMU sends 0).
    ///
    /// # Errors
    /// When there is no such region.
    pub(super) fn remove(&mut self, region: Region) -> Result<Arc<GuestMemory>, MemoryError> {
        let before = self.slots.len();
        let same =
            |r: &Region| (r.guest, r.size, r.user) == (region.guest, region.size, region.user);
        self.slots.retain(|slot| !same(&slot.region));
        if self.slots.len() == before {
            let Region { guest, size, .. } = region;
            return Err(MemoryError::Refused(format!(
                "expected a region of memory that was added, found none of {size} bytes at {guest:#x}"
            )));
        }
        self.memory()
    }

    /// The regions with their files.
    pub(super) fn files(&self) -> impl Iterator<Item = (Region, &File)> {
        self.slots.iter().map(|slot| (slot.region, &slot.file))
    }

    /// The guest's address for the front end's address `user`.
    pub(super) fn guest_address(&self, user: u64) -> Option<GuestAddress> {
        self.slots.iter().find_map(|slot| {
            let r = &slot.region;
            let inside = user.checked_sub(r.user).filter(|at| *at < r.size)?;
            Some(GuestAddress(r.guest + inside))
        })
    }

    fn insert(&mut self, region: Region, file: File) -> Result<(), MemoryError> {
        let Region { guest, size, .. } = region;
        if self.slots.len() >= MAX_MEMORY_SLOTS {
            return Err(MemoryError::Refused(format!(
                "expected at most {MAX_MEMORY_SLOTS} regions of memory, found one more"
            )));
        }
        let invalid = || {
            MemoryError::Refused(format!(
                "expected a region of memory that ends within all addresses, found {size} bytes at {guest:#x}"
            ))
        };
        if !region.is_valid() {
            return Err(invalid());
        }
        if self.slots.iter().any(|slot| slot.region.overlaps(&region)) {
            return Err(MemoryError::Refused(format!(
                "expected regions of memory that do not overlap, found another for {size} bytes at {guest:#x}"
            )));
        }
        let mapped = map(&file, region.offset, size, &self.budget)?;
        let mapped = GuestRegion::new(mapped, guest);
        let mapped = mapped.ok_or_else(invalid)?;
        let share = self.budget.take(Amount {
            files: 1,
            ..Amount::default()
        })?;
        self.slots.push(Slot {
            region,
            memory: Arc::new(mapped),
            file,
            _share: share,
        });
        self.slots.sort_unstable_by_key(|slot| slot.region.guest);
        Ok(())
    }

    fn memory(&self) -> Result<Arc<GuestMemory>, MemoryError> {
        if self.slots.is_empty() {
            return Ok(Arc::new(GuestMemory::new()));
        }
        let regions = self.slots.iter().map(|slot| Arc::clone(&slot.memory));
        let regions = regions.collect();
        let memory = GuestMemory::from_arc_regions(regions);
        let memory = memory.map_err(io::Error::other)?;
        Ok(Arc::new(memory))
    }
}

// Mappings of files of guests' memory.

/// A mapping. Its content may be lost, see [`is_lost`](Self::is_lost).
#[derive(Debug)]
pub(crate) struct Mapping {
    start: *mut u8,
    size: usize,
    /// Dropped before the mapping.
    guard: Option<Guard>,
    _share: BudgetShare,
}

// SAFETY: the memory is mapped for all threads, and only volatile accesses use it.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps a part of a file for reading and writing. The file need not stay open.
    ///
    /// # Errors
    /// When the system refuses.
    pub(super) fn new(
        file: impl AsFd,
        offset: u64,
        size: usize,
        share: BudgetShare,
    ) -> io::Result<Self> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::SHARED | MapFlags::NORESERVE;
        // SAFETY: a new mapping, wherever the kernel puts it.
        let start = unsafe { mmap(std::ptr::null_mut(), size, access, flags, file, offset) }?;
        let mut new = Self {
            start: start.cast(),
            size,
            guard: None,
            _share: share,
        };
        // SAFETY: the guard ends before the mapping, and `slice` gives volatile accesses alone.
        new.guard = Some(unsafe { Guard::new(start.expose_provenance(), size) }?);
        Ok(new)
    }

    /// Its bytes.
    pub(super) const fn size(&self) -> usize {
        self.size
    }

    /// All of it.
    pub(super) fn slice(&self) -> VolatileSlice<'_> {
        // SAFETY: the mapping lives as long as `self`, which outlives the returned slice.
        unsafe { VolatileSlice::new(self.start, self.size) }
    }

    /// Has its content been lost? Later reads return zeroes.
    pub(super) fn is_lost(&self) -> bool {
        self.guard.as_ref().is_some_and(Guard::is_lost)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        self.guard = None;
        // SAFETY: it was mapped here, and is no longer used.
        if let Err(e) = unsafe { munmap(self.start.cast(), self.size) } {
            tracing::error!("cannot unmap {} bytes of a guest's memory: {e}", self.size);
        }
    }
}

// Files of memory from a front end.

/// Kinds of file systems (`include/uapi/linux/magic.h`). A memfd is a file of the first, or of the second with huge pages.
const TMPFS_MAGIC: u64 = 0x0102_1994;
const HUGETLBFS_MAGIC: u64 = 0x9584_58f6;

/// Why memory is refused.
#[derive(Debug, thiserror::Error)]
pub(crate) enum MemoryError {
    /// It exceeds the budget of front ends.
    #[error(transparent)]
    Budget(#[from] OverBudget),
    /// The system refused.
    #[error("cannot map memory: {0}")]
    Io(#[from] io::Error),
    /// Anything else: what was expected, and what was found.
    #[error("{0}")]
    Refused(String),
}

/// Maps a part of a file, for reading and writing, within a budget. The content is lost when the file shrinks or huge pages run
/// out; see [`Mapping::is_lost`].
///
/// Ordinary files are refused: their pages come from a disk, or from a FUSE server of the front end that may never answer.
pub(crate) fn map(
    file: &File,
    offset: u64,
    size: u64,
    budget: &Arc<Budget>,
) -> Result<Mapping, MemoryError> {
    let system = fstatfs(file).map_err(io::Error::from)?;
    let kind = u64::try_from(system.f_type).unwrap_or(0);
    let page = u64::try_from(system.f_bsize).unwrap_or(1);
    match kind {
        TMPFS_MAGIC => {}
        HUGETLBFS_MAGIC if (offset | size).is_multiple_of(page) => {}
        HUGETLBFS_MAGIC => {
            return Err(MemoryError::Refused(format!(
                "expected a region of whole huge pages of {page} bytes, found {size} bytes at {offset} of the file"
            )));
        }
        // Reading its pages may take forever.
        _ => {
            return Err(MemoryError::Refused(format!(
                "expected memory in a memfd, on tmpfs or on hugetlbfs (QEMU: memory-backend-memfd with share=on), found a file of a file system of type {kind:#x}"
            )));
        }
    }
    let found = fstat(file).map_err(io::Error::from)?.st_size;
    let found = u64::try_from(found).unwrap_or(0);
    let expected = offset.saturating_add(size);
    if found < expected {
        return Err(short(expected, found));
    }
    let share = budget.take(Amount {
        bytes: size,
        mappings: 1,
        files: 0,
    })?;
    let size = usize::try_from(size).map_err(io::Error::other)?;
    Ok(Mapping::new(file, offset, size, share)?)
}

/// The error for a file of `found` bytes instead of `expected`.
pub(super) fn short(expected: u64, found: u64) -> MemoryError {
    MemoryError::Refused(format!(
        "expected {expected} bytes of memory, found a file of {found}"
    ))
}

/// New memory of a sealed size, all zero.
pub(crate) fn sealed(name: &str, size: u64) -> io::Result<File> {
    use rustix::fs::{MemfdFlags, fcntl_add_seals, ftruncate, memfd_create};
    let file = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    ftruncate(&file, size)?;
    fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(file.into())
}

#[cfg(test)]
mod tests {
    use super::{sealed, *};
    use vm_memory::{Bytes, GuestMemoryBackend};

    const MIB: u64 = 1 << 20;

    fn region(guest: u64, size: u64, offset: u64) -> Region {
        Region {
            guest,
            size,
            user: guest.wrapping_add(1 << 40),
            offset,
        }
    }

    #[test]
    fn regions_come_and_go() {
        let file = sealed("guest", 3 * MIB).unwrap();
        let again = || file.try_clone().unwrap();
        let mut slots = MemorySlots::new(Budget::of_vm().for_front_end());
        let first = slots.replace([(region(0, MIB, 0), again())]).unwrap();
        first.write_obj(7u8, GuestAddress(5)).unwrap();
        let both = slots.add(region(4 * MIB, MIB, 0), again()).unwrap();
        // The same file twice: the same byte.
        assert_eq!(both.read_obj::<u8>(GuestAddress(4 * MIB + 5)).unwrap(), 7);
        let user = (1 << 40) + 4 * MIB + 5;
        assert_eq!(slots.guest_address(user), Some(GuestAddress(4 * MIB + 5)));
        for (bad, why) in [
            (region(MIB - 4096, 2 * MIB, 0), "do not overlap"),
            (region(0, MIB, 0), "do not overlap"),
            (region(8 * MIB, MIB, 3 * MIB), "found a file of"),
            (region(8 * MIB, 0, 0), "found 0 bytes at 0x800000"),
            (region(u64::MAX - 4095, 2 * MIB, 0), "within all addresses"),
        ] {
            let error = slots.add(bad, again()).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
        let last = slots.remove(region(0, MIB, 0)).unwrap();
        assert!(!last.address_in_range(GuestAddress(5)));
        let error = slots.remove(region(0, MIB, 0)).unwrap_err().to_string();
        assert!(
            error.contains("found none of 1048576 bytes at 0x0"),
            "{error}"
        );
        assert_eq!(slots.guest_address(1 << 40), None);
        // A request of the old memory still has it.
        assert_eq!(first.read_obj::<u8>(GuestAddress(5)).unwrap(), 7);
    }

    #[test]
    fn regions_are_counted() {
        let file = sealed("guest", 4096).unwrap();
        let mut slots = MemorySlots::new(Budget::of_vm().for_front_end());
        for at in 0..=128_u64 {
            let added = slots.add(region(at * MIB, 4096, 0), file.try_clone().unwrap());
            match added {
                Ok(_) => assert!(at < 128),
                Err(e) => assert_eq!((at, e.to_string().contains("at most 128")), (128, true)),
            }
        }
    }

    #[test]
    fn memory_whose_pages_may_never_come_is_refused() {
        let mut slots = MemorySlots::new(Budget::of_vm().for_front_end());
        // A file of a disk, or of a FUSE server; a pipe is no file at all.
        let disk = File::open("/proc/self/exe").unwrap();
        let pipe = std::io::pipe().unwrap().0;
        for file in [disk, File::from(std::os::fd::OwnedFd::from(pipe))] {
            let refused = slots.add(region(0, MIB, 0), file).unwrap_err();
            assert!(refused.to_string().contains("expected memory in a memfd"));
        }
    }

    #[test]
    fn tables_that_are_in_use_count_for_a_budget() {
        let file = sealed("guest", 1 << 41).unwrap();
        let budget = Budget::of_vm().for_front_end();
        let mut slots = MemorySlots::new(budget);
        let mut table = || {
            let regions =
                (0..128_u64).map(|at| (region(at * MIB, MIB, 0), file.try_clone().unwrap()));
            slots.replace(regions)
        };
        let mut kept = Vec::new();
        let refused = loop {
            match table() {
                Ok(memory) => kept.push(memory),
                Err(e) => break e.to_string(),
            }
        };
        assert_eq!(kept.len(), 8, "tables of 128 regions");
        assert!(
            refused.contains("1024 mappings for one front end"),
            "{refused}"
        );
        kept.truncate(6);
        assert!(table().is_ok(), "requests of old ones were answered");
    }
}
