//! The disk behind a volume: cached or not.

use crate::backing::RawDisk;
use crate::block_dev::{Disk, DiskFile};
use crate::cache::{PoolHandle, WriteGuard};
use crate::disk::{CachedDisk, MissFill, MissRemainder};
use crate::ids::PoolId;
use std::io;
use std::sync::Arc;

/// Tells which parts of an image are allocated.
pub trait Allocation: Send + Sync {
    /// The extents of a range in order, at most `limit`: length in bytes, and whether it is a hole. The last may end
    /// beyond the range.
    ///
    /// # Errors
    /// What the file system reports.
    fn extents(&self, off: u64, count: u64, limit: usize) -> io::Result<Vec<(u64, bool)>>;
}

impl Allocation for RawDisk {
    fn extents(&self, off: u64, count: u64, limit: usize) -> io::Result<Vec<(u64, bool)>> {
        Self::extents(self, off, count, limit)
    }
}

/// The disk behind a volume.
pub enum Backend {
    /// Read through the cache.
    Cached(CachedDisk),
    /// Read and written as it is.
    Plain(Arc<dyn Disk>),
}

impl Backend {
    /// The disk, cached or not.
    #[must_use]
    pub fn disk(&self) -> &dyn Disk {
        match self {
            Self::Cached(disk) => disk,
            Self::Plain(disk) => disk,
        }
    }

    /// The file that an io_uring may transfer to and from, if there is one.
    pub(crate) fn file(&self) -> Option<&DiskFile> {
        match self {
            Self::Cached(disk) => disk.backing().file(),
            Self::Plain(disk) => disk.file(),
        }
    }

    /// A pool of the disk's VM, if there is one of this number.
    pub(crate) fn pool(&self, id: PoolId) -> Option<PoolHandle> {
        match self {
            Self::Cached(disk) => disk.pool_of(id),
            Self::Plain(_) => None,
        }
    }

    /// Copies what the cache has in memory, without waiting; `None` when that is all. What is missing is for `pool`, or
    /// for the disk's own.
    pub(crate) fn look_up(
        &self,
        pool: Option<&PoolHandle>,
        buf: &mut [u8],
        off: u64,
    ) -> Option<MissRemainder> {
        match self {
            Self::Cached(disk) => {
                let mut remainder = disk.look_up(pool.unwrap_or(&disk.pool), buf, off)?;
                remainder.pool = pool.cloned();
                Some(remainder)
            }
            Self::Plain(_) => Some(MissRemainder::default()),
        }
    }

    /// Reads what a lookup left, and waits for it.
    pub(crate) fn finish(
        &self,
        remainder: MissRemainder,
        buf: &mut [u8],
        off: u64,
    ) -> io::Result<()> {
        match self {
            Self::Cached(disk) => {
                let pool = remainder.pool.clone();
                disk.finish(pool.as_ref().unwrap_or(&disk.pool), remainder, buf, off)
            }
            Self::Plain(disk) => disk.read_at(buf, off),
        }
    }

    /// Reads what a lookup found on the SSD store, and waits for it; `true` when nothing is missing then.
    pub(crate) fn read_ssd(&self, remainder: &mut MissRemainder, buf: &mut [u8], off: u64) -> bool {
        match self {
            Self::Cached(disk) => {
                let pool = remainder.pool.clone();
                disk.read_pending(pool.as_ref().unwrap_or(&disk.pool), remainder, buf, off)
            }
            Self::Plain(_) => false,
        }
    }

    /// What is to be read of the disk for what a lookup left.
    pub(crate) fn begin_fill(
        &self,
        remainder: &MissRemainder,
        off: u64,
        count: u64,
    ) -> Option<MissFill> {
        match self {
            Self::Cached(disk) => disk.begin_fill(remainder, off, count),
            Self::Plain(_) => Some(MissFill::only(off..off + count)),
        }
    }

    /// Puts into the cache what was read.
    pub(crate) fn end_fill(&self, fill: &MissFill, content: &[u8]) {
        if let Self::Cached(disk) = self {
            disk.end_fill(fill.pool.as_ref().unwrap_or(&disk.pool), fill, content);
        }
    }

    /// Begins a write of a byte range: the cache holds nothing of it until the guard is dropped.
    pub(crate) fn begin_write(&self, off: u64, len: u64) -> Option<WriteGuard> {
        match self {
            Self::Cached(disk) => Some(disk.begin_write(off, len)),
            Self::Plain(_) => None,
        }
    }
}
