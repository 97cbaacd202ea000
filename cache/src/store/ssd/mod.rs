//! The SSD store: a log of extents for each pool (the paper's section 4.2, asynchronous puts, synchronous
//! gets).
//!
//! A pool fills one extent (256 KiB) from its beginning to its end, in segments of 64 KiB. Two writer threads write up to
//! sixteen segments in one batch, by the weights of VMs and pools. Until a segment is written, its blocks are read from memory.
//! Extents are evicted whole, oldest first. An extent goes to another pool only when none of its blocks is in the index and no
//! write to it is pending.
//!
//! The first MiB of the file or device is a mark that identifies an SSD store.
//!
//! Checksums also cover the block's key, with a secret seed. So content that another block or another VM has left on the device
//! never passes for the cached block. Every start has a new seed, unless it restores the last daemon's blocks, and with them
//! its seed.

mod device;
mod fair_queue;
mod log;
mod store;
mod transfer;
mod warm;
mod write_buffer;

#[cfg(test)]
mod test_place;

pub(crate) use device::check_place;
pub use device::{Device, FileDevice, Foreign};
pub(crate) use log::{Append, SsdLog};
pub(crate) use store::{EXTENT_SLOTS, SsdReadRef, SsdStore};
#[cfg(any(test, feature = "lab"))]
pub use transfer::Overdue;
pub(crate) use warm::SavedSlot;
#[cfg(any(test, feature = "lab"))]
pub use write_buffer::BlocksRead;
pub(crate) use write_buffer::{Owner as SegmentOwner, Page, Segment};
