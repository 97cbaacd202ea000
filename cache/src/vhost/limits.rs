//! What the device has at most, and what front ends ask for that cannot be.

use std::io;
use vhost::vhost_user::Error;

/// A parameter of a message that cannot be served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Invalid {
    /// There is no such ring.
    #[error("expected one of the rings 0 to {}, found {index}", MAX_QUEUES - 1)]
    Ring { index: u32 },
    /// No ring has this size.
    #[error(
        "ring {index}: expected a size that is a power of two and at most {MAX_QUEUE_SIZE}, found {size}"
    )]
    RingSize { index: u32, size: u32 },
    /// No index of a ring.
    #[error("ring {index}: expected an index of its available ring of at most 65535, found {base}")]
    Base { index: u32, base: u32 },
    /// A part of a ring outside of the memory that the front end has told.
    #[error("ring {index}: expected its {part} in a region of memory, found it at {address:#x}")]
    Address {
        index: u32,
        part: &'static str,
        address: u64,
    },
    /// A ring that would have to be polled.
    #[error("ring {index}: expected an eventfd that says that there are requests, found none")]
    NoKick { index: u8 },
    /// The region of requests in flight was made for others.
    #[error(
        "ring {index}: expected an in-flight region with room for it, found none for a ring of {size}"
    )]
    Inflight { index: u32, size: u16 },
    /// More regions than there can be.
    #[error("expected at most {MAX_MEMORY_SLOTS} regions of memory, found {found}")]
    Regions { found: usize },
    /// Only the write cache is the driver's to choose.
    #[error(
        "expected one byte at {} of the configuration, the write cache, found {bytes} at {offset}",
        crate::vhost::config::WRITE_BACK
    )]
    Configuration { offset: u32, bytes: usize },
}

impl From<Invalid> for Error {
    fn from(why: Invalid) -> Self {
        Self::ReqHandlerError(io::Error::new(io::ErrorKind::InvalidInput, why))
    }
}

/// Queues of a disk.
pub(super) const MAX_QUEUES: u16 = 64;
/// Entries of a ring.
pub(super) const MAX_QUEUE_SIZE: u16 = 1024;
/// Bytes of a segment of a request.
pub(super) const MAX_SEGMENT: u32 = 64 << 10;
/// Segments of a request: with header and status they fit a ring of 128 entries, QEMU's default.
pub(super) const MAX_SEGMENTS: u32 = 126;
/// Bytes that a request reads or writes.
pub(super) const MAX_REQUEST: u64 = MAX_SEGMENT as u64 * MAX_SEGMENTS as u64;
/// Sectors that one discard or write-zeroes covers: 2 GiB.
pub(super) const MAX_RANGE_SECTORS: u32 = 4 << 20;
/// Bytes of a sector, the unit of the protocol and the device's logical block.
pub(super) const SECTOR: u64 = 512;
/// Regions of guest memory. Each is a mapping, of which a process has 65,530, and an open file.
pub(super) const MAX_MEMORY_SLOTS: usize = 128;
/// Bytes that the requests of one queue hold, before no more are taken.
pub(super) const QUEUE_BYTES: usize = 8 << 20;
