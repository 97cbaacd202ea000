//! Where blocks lie: memory and SSD.

mod arena;
mod list;
mod memory;
mod ssd;

pub(crate) use list::{FreeList, Links, List, NIL};
pub(crate) use memory::{MemoryStore, SlotMeta};
pub(crate) use ssd::{
    Append, BlocksRead, Device, EXTENT_SLOTS, FileDevice, Foreign, Overdue, Page, Segment,
    SegmentOwner, SsdLog, SsdReadRef, SsdStore, check_place,
};
