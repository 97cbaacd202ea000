//! Files of memory that a front end hands over.

use rustix::fs::{SealFlags, fcntl_get_seals, fstat, fstatfs};
use std::fs::File;
use std::io;
use vm_memory::{FileOffset, MmapRegion};

/// `HUGETLBFS_MAGIC` (`include/uapi/linux/magic.h`).
const HUGETLBFS_MAGIC: u64 = 0x958458f6;

/// Why memory is refused.
#[derive(Debug, thiserror::Error)]
pub(super) enum MemoryError {
    /// Its owner could take it away, and reading it would end this process.
    #[error(
        "expected a memfd with the seal F_SEAL_SHRINK (QEMU: memory-backend-memfd with share=on,seal=on), found a file that can shrink"
    )]
    CanShrink,
    /// Its owner could take the pages away, and there may be no others.
    #[error("expected memory of normal pages, found huge pages of hugetlbfs, which may run out")]
    HugePages,
    /// It ends before the region does.
    #[error("expected {expected} bytes of memory, found a file of {found}")]
    Short {
        /// Where the region ends.
        expected: u64,
        /// Where the file ends.
        found: u64,
    },
    /// The system refused.
    #[error("cannot map memory: {0}")]
    Io(#[from] io::Error),
    /// More regions than there can be.
    #[error("expected at most {limit} regions of memory, found one more")]
    TooMany {
        /// How many there can be.
        limit: usize,
    },
    /// A region of no bytes, or beyond the end of all addresses.
    #[error(
        "expected a region of memory that ends within all addresses, found {size} bytes at {guest:#x}"
    )]
    Invalid {
        /// Where the guest would have it.
        guest: u64,
        /// Its bytes.
        size: u64,
    },
    /// A region where there is one.
    #[error(
        "expected regions of memory that do not overlap, found another for {size} bytes at {guest:#x}"
    )]
    Overlap {
        /// Where the guest would have it.
        guest: u64,
        /// Its bytes.
        size: u64,
    },
    /// Nothing that could be removed.
    #[error("expected a region of memory that was added, found none of {size} bytes at {guest:#x}")]
    Unknown {
        /// Where the guest would have it.
        guest: u64,
        /// Its bytes.
        size: u64,
    },
}

/// Maps a part of a file, for reading and writing. Touching it cannot fail: the file cannot shrink, and is at least as
/// long.
pub(super) fn map(file: File, offset: u64, size: u64) -> Result<MmapRegion, MemoryError> {
    // Files that are no memfd have no seals, which is an error.
    let seals = fcntl_get_seals(&file).map_err(|_| MemoryError::CanShrink)?;
    if !seals.contains(SealFlags::SHRINK) {
        return Err(MemoryError::CanShrink);
    }
    let kind = fstatfs(&file).map_err(io::Error::from)?.f_type;
    if u64::try_from(kind).is_ok_and(|kind| kind == HUGETLBFS_MAGIC) {
        return Err(MemoryError::HugePages);
    }
    // Asked for after the seal: from then on it can only grow.
    let found = fstat(&file).map_err(io::Error::from)?.st_size;
    let found = u64::try_from(found).unwrap_or(0);
    let expected = offset.saturating_add(size);
    if found < expected {
        return Err(MemoryError::Short { expected, found });
    }
    let size = usize::try_from(size).map_err(io::Error::other)?;
    MmapRegion::from_file(FileOffset::new(file, offset), size)
        .map_err(|e| MemoryError::Io(io::Error::other(e)))
}

/// New memory that cannot change its size, all zero.
pub(super) fn sealed(name: &str, size: u64) -> io::Result<File> {
    use rustix::fs::{MemfdFlags, fcntl_add_seals, ftruncate, memfd_create};
    let file = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    ftruncate(&file, size)?;
    fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(file.into())
}
