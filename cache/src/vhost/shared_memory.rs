//! Files of memory that a front end hands over.

use super::mapping::Mapping;
use crate::frontend::{Amount, Budget, OverBudget};
use rustix::fs::{SealFlags, fstat, fstatfs};
use std::fs::File;
use std::io;
use std::sync::Arc;

/// Kinds of file systems (`include/uapi/linux/magic.h`). A memfd is a file of the first, or of the second with huge pages.
const TMPFS_MAGIC: u64 = 0x0102_1994;
const HUGETLBFS_MAGIC: u64 = 0x9584_58f6;

/// Why memory is refused.
#[derive(Debug, thiserror::Error)]
pub(super) enum MemoryError {
    /// Its pages may take as long as somebody likes.
    #[error(
        "expected memory in a memfd, on tmpfs or on hugetlbfs (QEMU: memory-backend-memfd with share=on), found a file of a file system of type {kind:#x}"
    )]
    NoMemory {
        /// The type of its file system, as statfs(2) has it.
        kind: u64,
    },
    /// A mapping of huge pages has whole ones.
    #[error(
        "expected a region of whole huge pages of {page} bytes, found {size} bytes at {offset} of the file"
    )]
    HugePages {
        /// Bytes of a page.
        page: u64,
        /// Bytes of the region.
        size: u64,
        /// Where it begins in its file.
        offset: u64,
    },
    /// More than front ends may have of what the process has.
    #[error(transparent)]
    Budget(#[from] OverBudget),
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

/// Maps a part of a file, for reading and writing, within a budget. It may be lost when the file shrinks, or when there are
/// no huge pages left; see [`Mapping::is_lost`].
///
/// Pages of an ordinary file are read from a disk, or come from a FUSE server of the front end's, which never answers: they
/// are refused.
pub(super) fn map(
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
            return Err(MemoryError::HugePages { page, size, offset });
        }
        _ => return Err(MemoryError::NoMemory { kind }),
    }
    let found = fstat(file).map_err(io::Error::from)?.st_size;
    let found = u64::try_from(found).unwrap_or(0);
    let expected = offset.saturating_add(size);
    if found < expected {
        return Err(MemoryError::Short { expected, found });
    }
    let share = budget.take(Amount {
        bytes: size,
        mappings: 1,
        files: 0,
    })?;
    let size = usize::try_from(size).map_err(io::Error::other)?;
    Ok(Mapping::new(file, offset, size, share)?)
}

/// New memory that cannot change its size, all zero.
pub(super) fn sealed(name: &str, size: u64) -> io::Result<File> {
    use rustix::fs::{MemfdFlags, fcntl_add_seals, ftruncate, memfd_create};
    let file = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    ftruncate(&file, size)?;
    fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(file.into())
}
