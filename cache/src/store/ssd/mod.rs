//! The SSD store: a log of extents for each pool (the paper's section 4.2, asynchronous puts, synchronous
//! gets).
//!
//! A pool fills one extent (256 KiB) from its beginning to its end, in segments of 64 KiB that two writer
//! threads put on the device, each up to sixteen together, by the weights of VMs and pools; until a segment has
//! arrived its blocks are read from memory. Extents are evicted whole, oldest first. An extent is given to another
//! pool only when none of its blocks is in the index and no write to it is under way.
//!
//! The first MiB of the file or device is a mark, by which a store is told from everything else.
//!
//! Checksums cover the block's key, too, with a secret seed, so that what another block or another VM left on the
//! device never passes for the one that was put. Every start has its own seed, but for one that takes what the last daemon
//! has left, and with it the seed.

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
