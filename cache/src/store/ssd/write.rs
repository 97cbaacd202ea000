//! Writes of full segments to the device.

use super::extent::EXTENT_SLOTS;
use super::store::SsdStore;
use super::write_buffer::{SEGMENT_SLOTS, Segment};
use crate::block::BLOCK_BYTES;
use crate::clock;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Segments that a writer puts on the device together (1 MiB).
const WRITE_BATCH: usize = 16;

impl SsdStore {
    /// Bytes of a segment.
    pub(crate) const SEGMENT_BYTES: u64 = SEGMENT_SLOTS as u64 * BLOCK_BYTES;

    /// The next full segments, for a writer thread; none when the store has closed.
    pub(crate) fn next_full(&self) -> Vec<Arc<Segment>> {
        self.write_buffer.next(WRITE_BATCH)
    }

    /// The next full segment, if one waits.
    pub(crate) fn waiting_full(&self) -> Option<Arc<Segment>> {
        self.write_buffer.waiting()
    }

    /// Puts segments on the device, together; one result for each. Their blocks are found in memory until
    /// [`written`](Self::written).
    pub(crate) fn write(&self, segments: &[Arc<Segment>]) -> Vec<io::Result<()>> {
        let bytes: Vec<_> = segments
            .iter()
            .map(|segment| segment.bytes.read())
            .collect();
        let requests: Vec<_> = segments
            .iter()
            .zip(&bytes)
            .map(|(segment, bytes)| (u64::from(segment.first) * BLOCK_BYTES, bytes.as_bytes()))
            .collect();
        let begun = clock::now();
        let results = self.stall.write(|| self.device.write(&requests));
        let took = u64::try_from(clock::since(begun).as_nanos()).unwrap_or(u64::MAX);
        let blocks = u64::try_from(segments.len()).unwrap_or(0) * u64::from(SEGMENT_SLOTS);
        self.writes.lock().add(blocks, took);
        if results.iter().all(Result::is_ok) {
            self.worked();
        }
        results
    }

    /// A segment has arrived, or is given up and out of the index. `true` when its extent may be free now.
    pub(crate) fn written(&self, segment: &Segment) -> bool {
        self.write_buffer.forget(segment.first);
        let extent = self.extent(segment.first / EXTENT_SLOTS);
        extent.pending.fetch_sub(1, Ordering::SeqCst) == 1
    }

    /// Slots of a segment.
    pub(crate) fn slots(segment: &Segment) -> std::ops::Range<u32> {
        segment.first..segment.first + SEGMENT_SLOTS
    }
}
