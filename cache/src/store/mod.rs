//! Where blocks lie: memory and SSD.

mod arena;
mod list;
mod memory;
mod ssd;

pub(crate) use list::{Chain, Links, List, NIL};
pub(crate) use memory::{MemoryStore, Owner};
pub(crate) use ssd::{
    Append, Device, EXTENT_SLOTS, FileDevice, Page, SsdLog, SsdStore, Unit, Wanted,
};
