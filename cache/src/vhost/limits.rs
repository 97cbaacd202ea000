//! Limits of the device, and errors for requests beyond them.

use std::io;
use vhost::vhost_user::Error;

/// An invalid parameter of a message: what was expected, and what was found.
pub(super) fn invalid(why: String) -> Error {
    Error::ReqHandlerError(io::Error::new(io::ErrorKind::InvalidInput, why))
}

/// There is no such ring.
pub(super) fn no_ring(index: u32) -> Error {
    let last = MAX_QUEUES - 1;
    invalid(format!(
        "expected one of the rings 0 to {last}, found {index}"
    ))
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
/// A queue takes no more requests while its requests hold this many bytes.
pub(super) const QUEUE_BYTES: usize = 8 << 20;
