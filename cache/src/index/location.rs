//! The location of a block.

/// A slot of a store, in 32 bits: memory or SSD, and which.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Location(u32);

const SSD: u32 = 1 << 31;

/// Slots that a store can have: 8 TiB.
pub(crate) const MAX_SLOTS: u32 = SSD - 1;

/// A slot of the memory store or of the SSD store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SlotRef {
    Memory(u32),
    Ssd(u32),
}

impl Location {
    /// No slot of any store.
    pub(crate) const NONE: Self = Self(u32::MAX);

    pub(crate) const fn memory(slot: u32) -> Self {
        Self(slot)
    }

    pub(crate) const fn ssd(slot: u32) -> Self {
        Self(slot | SSD)
    }

    pub(crate) const fn slot(self) -> SlotRef {
        if self.0 & SSD == 0 {
            SlotRef::Memory(self.0)
        } else {
            SlotRef::Ssd(self.0 & !SSD)
        }
    }

    #[cfg(test)]
    pub(crate) const fn raw(self) -> u32 {
        self.0
    }
}
