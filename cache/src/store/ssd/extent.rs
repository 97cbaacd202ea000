//! Extents: their records, and the states that they go through.

use crate::block::BLOCK_BYTES;
use crate::index::MAX_SLOTS;
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64};

/// Slots of an extent: 256 KiB of blocks, one bit each in a word.
pub(crate) const EXTENT_SLOTS: u32 = 64;

/// Extents whose records are allocated together (16 MiB of blocks).
pub(super) const CHUNK: usize = 64;

/// What an extent is doing. Changed under the lock of the log of its owner.
pub(super) const FREE: u32 = 0;
pub(super) const OPEN: u32 = 1;
pub(super) const SEALED: u32 = 2;

/// 14 bytes a slot and 48 an extent.
pub(super) struct Chunk {
    pub(super) keys: Box<[AtomicU64]>,
    pub(super) sums: Box<[AtomicU32]>,
    /// When the block was used last, by the clock of its pool.
    pub(super) stamps: Box<[AtomicU16]>,
    pub(super) extents: Box<[Extent]>,
}

#[derive(Default)]
pub(super) struct Extent {
    /// A bit for each slot that is a block, or is being made or unmade one.
    pub(super) live: AtomicU64,
    /// Advances whenever the extent is given away: a read that began before is void.
    pub(super) epoch: AtomicU32,
    /// Segments on their way to the device.
    pub(super) pending: AtomicU32,
    pub(super) state: AtomicU32,
    pub(super) pool: AtomicU32,
    /// Which of its pool's extents it is, counted as they were opened.
    pub(super) opened: AtomicU32,
    pub(super) newer: AtomicU32,
    pub(super) older: AtomicU32,
}

/// Extents that any SSD store can have: its slots fit a place of the index.
pub(super) const LIMIT: u32 = MAX_SLOTS / EXTENT_SLOTS;

/// Whole extents in this many bytes.
pub(super) fn extents(bytes: u64) -> u32 {
    let extents = bytes / (u64::from(EXTENT_SLOTS) * BLOCK_BYTES);
    u32::try_from(extents).map_or(LIMIT, |e| e.min(LIMIT))
}
