//! Where blocks lie: memory and SSD.

mod arena;
mod list;
mod mapping;
mod memory;
mod ssd;

pub(crate) use arena::HUGE_SLOTS;
pub(crate) use list::{FreeList, Links, List, NIL};
pub(crate) use mapping::check_arena;
#[cfg(test)]
pub(crate) use mapping::has_huge_memfds;
pub(crate) use memory::{MemoryStore, SlotMeta};
pub(crate) use ssd::{
    Append, BlocksRead, Device, EXTENT_SLOTS, FileDevice, Foreign, Overdue, Page, SavedSlot,
    Segment, SegmentOwner, SsdLog, SsdReadRef, SsdStore, check_place,
};
