//! The stores of blocks: memory and SSD.

mod arena;
mod list;
mod memory;
mod ssd;

#[cfg(test)]
pub(crate) use arena::has_huge_memfds;
pub(crate) use arena::{HUGE_SLOTS, check_arena};
pub(crate) use list::{FreeList, Links, List, NIL};
pub(crate) use memory::{MemoryStore, SlotMeta};
pub(crate) use ssd::{
    Append, EXTENT_SLOTS, Page, SavedSlot, Segment, SegmentOwner, SsdLog, SsdReadRef, SsdStore,
    check_place,
};
#[cfg(any(test, feature = "lab"))]
pub use ssd::{BlocksRead, Overdue};
pub use ssd::{Device, FileDevice, Foreign};
