//! The guest's memory: one file, with the rings at its beginning.

use crate::frontend::Budget;
use crate::vhost::memory::{GuestMemory, GuestRegion};
use crate::vhost::shared_memory::{map, sealed};
use rustix::fs::{MemfdFlags, memfd_create};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use vhost::VhostUserMemoryRegionInfo;

/// Bytes of a queue's rings: descriptors, available and used, for at most 1024 entries.
pub const QUEUE_BYTES: u64 = 64 << 10;
/// Where the front end says that it has the guest's memory.
const USER_BASE: u64 = 1 << 40;

/// The memory of a guest.
#[derive(Clone)]
pub struct Guest {
    /// The memory, as the driver uses it.
    pub(crate) memory: Arc<GuestMemory>,
    file: Arc<File>,
    /// Where the guest has it.
    base: u64,
    size: u64,
}

/// Bytes of a request's slot, for this many bytes of data: a page for header, status and descriptors, and the data.
#[must_use]
pub fn slot_size(data: u64) -> u64 {
    4096 + data.next_multiple_of(4096)
}

impl Guest {
    /// Memory of this size, which the guest has at `base`.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn new(base: u64, size: u64) -> io::Result<Self> {
        Self::of_file(sealed("guest", size)?, base, size)
    }

    /// Memory of this file, which the guest has at `base`.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn of_file(file: File, base: u64, size: u64) -> io::Result<Self> {
        let budget = Budget::of_vm().for_front_end();
        let mapped = map(&file, 0, size, &budget).map_err(io::Error::other)?;
        let region = GuestRegion::new(mapped, base).ok_or(io::ErrorKind::InvalidInput)?;
        let memory = GuestMemory::from_regions(vec![region]).map_err(io::Error::other)?;
        Ok(Self {
            memory: Arc::new(memory),
            file: Arc::new(file),
            base,
            size,
        })
    }

    /// Memory whose file can be truncated.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn new_unsealed(base: u64, size: u64) -> io::Result<Self> {
        let file = memfd_create("guest", MemfdFlags::CLOEXEC)?;
        rustix::fs::ftruncate(&file, size)?;
        Self::of_file(file.into(), base, size)
    }

    /// Truncates the file, if it can be.
    ///
    /// # Errors
    /// When it is sealed.
    pub fn truncate(&self, size: u64) -> io::Result<()> {
        self.file.set_len(size)
    }

    /// The region, as a front end tells of it.
    #[must_use]
    pub fn region(&self) -> VhostUserMemoryRegionInfo {
        VhostUserMemoryRegionInfo {
            guest_phys_addr: self.base,
            memory_size: self.size,
            userspace_addr: self.user(self.base),
            mmap_offset: 0,
            mmap_handle: self.file.as_raw_fd(),
        }
    }

    /// The front end's address of what the guest has at `address`.
    #[must_use]
    pub const fn user(&self, address: u64) -> u64 {
        USER_BASE + address
    }

    /// Where the guest has it.
    #[must_use]
    pub const fn base(&self) -> u64 {
        self.base
    }
}
