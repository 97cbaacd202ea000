//! The stores together, as the index sees them.

use crate::block::Key;
use crate::index::{Keys, Location, SlotRef};
use crate::store::{MemoryStore, SsdStore};
use arc_swap::ArcSwapOption;
use std::sync::Arc;

pub(crate) struct Stores {
    pub(crate) memory: MemoryStore,
    /// The SSD store, in use or failed. The index names slots of this one only: one that is replaced is
    /// closed and swept out of the index first.
    pub(crate) ssd: ArcSwapOption<SsdStore>,
}

impl Stores {
    /// The SSD store, if there is one that takes blocks.
    pub(crate) fn working_ssd(&self) -> Option<Arc<SsdStore>> {
        self.ssd.load_full().filter(|ssd| !ssd.closed())
    }
}

impl Keys for Stores {
    fn key(&self, location: Location) -> Key {
        match location.slot() {
            SlotRef::Memory(slot) => self.memory.key(slot),
            SlotRef::Ssd(slot) => self
                .ssd
                .load()
                .as_ref()
                .map_or(Key::from_raw(u64::MAX), |ssd| ssd.key(slot)),
        }
    }
}
