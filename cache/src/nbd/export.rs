//! What is served under a name.

use super::handshake::Offer;
use super::proto::export_flag as flag;
use super::tenant::Tenant;
use crate::backing::DiskFile;
use crate::disk::{Change, Fill, Rest};
use crate::{CachedDisk, Disk};
use serde::Serialize;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Tells which parts of an image are allocated (BLOCK_STATUS of `base:allocation`).
pub trait Allocation: Send + Sync {
    /// The extents of a range in order, at most `limit`: length in bytes, and whether it is a hole. The
    /// last may end beyond the range.
    ///
    /// # Errors
    /// What the file system reports.
    fn extents(&self, off: u64, count: u64, limit: usize) -> io::Result<Vec<(u64, bool)>>;
}

impl Allocation for crate::backing::RawDisk {
    fn extents(&self, off: u64, count: u64, limit: usize) -> io::Result<Vec<(u64, bool)>> {
        Self::extents(self, off, count, limit)
    }
}

/// The disk behind an export.
pub enum Served {
    /// Read through the cache.
    Cached(CachedDisk),
    /// As it is.
    Plain(Arc<dyn Disk>),
}

impl Served {
    /// The disk, whatever it is.
    #[must_use]
    pub fn disk(&self) -> &dyn Disk {
        match self {
            Self::Cached(disk) => disk,
            Self::Plain(disk) => disk,
        }
    }

    /// The file that transfers go to and from, if they may without a thread that waits.
    pub(super) fn file(&self) -> Option<&DiskFile> {
        match self {
            Self::Cached(disk) => disk.backing().file(),
            Self::Plain(disk) => disk.file(),
        }
    }

    /// Copies what the cache has in memory, without waiting; `None` when that is all.
    pub(super) fn look_up(&self, buf: &mut [u8], off: u64) -> Option<Rest> {
        match self {
            Self::Cached(disk) => disk.look_up(&disk.pool, buf, off),
            Self::Plain(_) => Some(Rest::default()),
        }
    }

    /// Reads what a lookup left, and waits for it.
    pub(super) fn finish(&self, rest: Rest, buf: &mut [u8], off: u64) -> io::Result<()> {
        match self {
            Self::Cached(disk) => disk.finish(&disk.pool, rest, buf, off),
            Self::Plain(disk) => disk.read_at(buf, off),
        }
    }

    /// Reads what a lookup found on the SSD store, and waits for it; `true` when nothing is missing then.
    pub(super) fn read_ssd(&self, rest: &mut Rest, buf: &mut [u8], off: u64) -> bool {
        match self {
            Self::Cached(disk) => disk.read_pending(&disk.pool, rest, buf, off),
            Self::Plain(_) => false,
        }
    }

    /// What is to be read for what a lookup left.
    pub(super) fn begin_fill(&self, rest: &Rest, off: u64, count: u64) -> Option<Fill> {
        match self {
            Self::Cached(disk) => disk.begin_fill(rest, off, count),
            Self::Plain(_) => Some(Fill::only(off..off + count)),
        }
    }

    /// It has been read.
    pub(super) fn end_fill(&self, fill: &Fill, content: &[u8]) {
        if let Self::Cached(disk) = self {
            disk.end_fill(&disk.pool, fill, content);
        }
    }

    /// A change of a byte range begins.
    pub(super) fn change(&self, off: u64, len: u64) -> Option<Change> {
        match self {
            Self::Cached(disk) => Some(disk.change(off, len)),
            Self::Plain(_) => None,
        }
    }
}

/// A disk under a name.
pub struct Export {
    name: String,
    description: String,
    read_only: bool,
    served: Served,
    allocation: Option<Arc<dyn Allocation>>,
    pub(super) tenant: Arc<Tenant>,
    pub(super) counts: Counts,
}

#[derive(Default)]
pub(super) struct Counts {
    pub reads: AtomicU64,
    pub read_bytes: AtomicU64,
    pub at_once: AtomicU64,
    pub by_workers: AtomicU64,
    pub writes: AtomicU64,
    pub write_bytes: AtomicU64,
    pub errors: AtomicU64,
}

impl Counts {
    pub(super) fn read(&self, bytes: u64) {
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.read_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(super) fn wrote(&self, bytes: u64) {
        self.writes.fetch_add(1, Ordering::Relaxed);
        self.write_bytes.fetch_add(bytes, Ordering::Relaxed);
    }
}

/// What an export has done since it was added.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ExportStats {
    /// Its name.
    pub name: String,
    /// READ requests answered.
    pub reads: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Of the reads, those that were answered from the cache without waiting.
    pub reads_at_once: u64,
    /// Requests that a worker thread answered: those that take more than one transfer, and all but hits where
    /// io_uring is refused.
    pub by_workers: u64,
    /// WRITE, TRIM and WRITE_ZEROES requests answered.
    pub writes: u64,
    /// Bytes they covered.
    pub write_bytes: u64,
    /// Requests answered with an error.
    pub errors: u64,
}

impl Export {
    /// Serves `served` as `name`, without a description, writable, as the disk of a VM of its own that clients with
    /// certificates do not see.
    #[must_use]
    pub fn new(name: &str, served: Served) -> Self {
        Self {
            name: name.to_owned(),
            description: String::new(),
            read_only: false,
            served,
            allocation: None,
            tenant: Arc::default(),
            counts: Counts::default(),
        }
    }

    /// With a description for people.
    #[must_use]
    pub fn description(mut self, text: &str) -> Self {
        text.clone_into(&mut self.description);
        self
    }

    /// Writes are refused.
    #[must_use]
    pub const fn read_only(mut self, yes: bool) -> Self {
        self.read_only = yes;
        self
    }

    /// BLOCK_STATUS is answered from this.
    #[must_use]
    pub fn allocation(mut self, from: Arc<dyn Allocation>) -> Self {
        self.allocation = Some(from);
        self
    }

    /// It is a disk of this VM.
    #[must_use]
    pub fn tenant(mut self, tenant: &Arc<Tenant>) -> Self {
        self.tenant = Arc::clone(tenant);
        self
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The disk behind it.
    #[must_use]
    pub const fn served(&self) -> &Served {
        &self.served
    }

    /// Whether writes are refused.
    #[must_use]
    pub const fn is_read_only(&self) -> bool {
        self.read_only
    }

    /// What it has done.
    #[must_use]
    pub fn stats(&self) -> ExportStats {
        let read = |c: &AtomicU64| c.load(Ordering::Relaxed);
        ExportStats {
            name: self.name.clone(),
            reads: read(&self.counts.reads),
            read_bytes: read(&self.counts.read_bytes),
            reads_at_once: read(&self.counts.at_once),
            by_workers: read(&self.counts.by_workers),
            writes: read(&self.counts.writes),
            write_bytes: read(&self.counts.write_bytes),
            errors: read(&self.counts.errors),
        }
    }

    pub(super) fn extents(
        &self,
        off: u64,
        count: u64,
        limit: usize,
    ) -> io::Result<Vec<(u64, bool)>> {
        match &self.allocation {
            Some(allocation) => allocation.extents(off, count, limit),
            None => Ok(vec![(count, false)]),
        }
    }

    pub(super) fn offer(&self) -> Offer {
        let mut flags = flag::HAS_FLAGS
            | flag::SEND_FLUSH
            | flag::SEND_FUA
            | flag::SEND_DF
            | flag::SEND_CACHE
            // A flush covers the writes of all connections: they share the one disk.
            | flag::CAN_MULTI_CONN;
        flags |= if self.read_only {
            flag::READ_ONLY
        } else {
            flag::SEND_TRIM | flag::SEND_WRITE_ZEROES
        };
        Offer {
            name: self.name.clone(),
            description: self.description.clone(),
            size: self.served.disk().size(),
            flags,
        }
    }
}
