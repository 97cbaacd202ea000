//! Reads of blocks: from the write buffer, or from the device with their checksums compared.

use super::extent::EXTENT_SLOTS;
use super::page::BlocksRead;
use super::stall::READ_PATIENCE;
use super::store::SsdStore;
use crate::block::{BLOCK_BYTES, Block, Key};
use std::io;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// A block on the device that is about to be read.
#[derive(Clone, Copy)]
pub(crate) struct SsdReadRef {
    pub(crate) slot: u32,
    sum: u32,
    epoch: u32,
}

impl SsdStore {
    /// Is a read of the device overdue?
    pub(crate) fn is_stalled(&self) -> bool {
        self.stall.is_stalled()
    }

    /// For how long a read has been overdue.
    pub(crate) fn stalled_for(&self) -> Option<Duration> {
        self.stall.time()
    }

    /// For how long the oldest write that is under way has been.
    pub(crate) fn writing_for(&self) -> Option<Duration> {
        self.stall.write_time()
    }

    /// Waits until a read is overdue, or a write takes long; `false` when the store has closed.
    pub(crate) fn wait_for_stall(&self) -> bool {
        self.stall.wait()
    }

    /// What stands for a block's content and name: the low half of a keyed hash.
    pub(crate) fn sum(&self, key: Key, content: &Block) -> u32 {
        let sum = xxhash_rust::xxh3::xxh3_64_with_seed(content, key.hash(self.seed));
        u32::try_from(sum & u64::from(u32::MAX)).unwrap_or(0)
    }

    /// Copies a part of a block that is not on the device yet. Call under the lock of its shard.
    pub(crate) fn read_buffered(&self, slot: u32, at: usize, piece: &mut [u8]) -> bool {
        let Some(segment) = self.write_buffer.find(slot) else {
            return false;
        };
        let bytes = segment.bytes.read();
        let block = bytes.block(slot - segment.first);
        piece.copy_from_slice(&block[at..at + piece.len()]);
        true
    }

    /// What a read from the device needs. Call under the lock of the shard.
    pub(crate) fn read_ref(&self, slot: u32) -> SsdReadRef {
        let (chunk, i) = self.slot(slot);
        let extent = self.extent(slot / EXTENT_SLOTS);
        SsdReadRef {
            slot,
            sum: chunk.sums[i].load(Ordering::Relaxed),
            epoch: extent.epoch.load(Ordering::SeqCst),
        }
    }

    /// Is the slot still what it was? Call under the lock of the shard, when the index names it.
    pub(crate) fn is_current(&self, read_ref: SsdReadRef) -> bool {
        let extent = self.extent(read_ref.slot / EXTENT_SLOTS);
        extent.epoch.load(Ordering::SeqCst) == read_ref.epoch
    }

    /// Reads blocks from the device, together, and checks their sums. `None` when the device does not answer, and at once
    /// while it does not.
    pub(crate) fn read(&self, read_refs: &[(Key, SsdReadRef)]) -> Option<BlocksRead> {
        if self.closed() || self.is_stalled() {
            return None;
        }
        let offset = |(_, read_ref): &(_, SsdReadRef)| u64::from(read_ref.slot) * BLOCK_BYTES;
        let offsets: Vec<_> = read_refs.iter().map(offset).collect();
        let read = self.device.read(&offsets, READ_PATIENCE);
        let mut read = read.map_err(|overdue| self.stall.begin(overdue)).ok()?;
        let results = read.results.iter_mut().zip(&read.pages);
        for ((result, page), (key, read_ref)) in results.zip(read_refs) {
            if result.is_ok() && self.sum(*key, &page.0) != read_ref.sum {
                *result = Err(io::Error::new(
                    io::ErrorKind::InvalidData,
                    format!(
                        "block {} of the SSD store is not what was put",
                        read_ref.slot
                    ),
                ));
            }
        }
        if read.results.iter().all(Result::is_ok) {
            self.worked();
        }
        Some(read)
    }
}
