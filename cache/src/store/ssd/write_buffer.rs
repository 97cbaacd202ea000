//! Blocks on their way to the device: found in memory until they have arrived.

use crate::block::Block;
use parking_lot::{Condvar, Mutex, RwLock};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

/// Slots that are written together: 64 KiB.
pub(crate) const SEGMENT_SLOTS: u32 = 16;

/// Full segments that may wait for the device (8 MiB); when the device is slower than the puts, puts are dropped.
const QUEUE: usize = 128;

const SHARDS: usize = 16;

/// The bytes of a segment, where direct I/O accepts them.
#[repr(C, align(4096))]
pub(crate) struct Bytes([Block; 16]);

impl Bytes {
    pub(crate) fn as_bytes(&self) -> &[u8] {
        self.0.as_flattened()
    }

    pub(crate) fn block(&self, i: u32) -> &Block {
        &self.0[usize::try_from(i).unwrap_or(0)]
    }
}

/// Sixteen neighbouring slots.
pub(crate) struct Segment {
    /// The first slot, a multiple of [`SEGMENT_SLOTS`].
    pub(crate) first: u32,
    pub(crate) bytes: RwLock<Box<Bytes>>,
}

impl Segment {
    pub(crate) fn new(first: u32) -> Self {
        Self {
            first,
            bytes: RwLock::new(Box::new(Bytes([[0; 4096]; 16]))),
        }
    }

    pub(crate) fn put(&self, slot: u32, content: &Block) {
        let i = usize::try_from(slot % SEGMENT_SLOTS).unwrap_or(0);
        self.bytes.write().0[i] = *content;
    }
}

/// Segments that are not on the device, by number.
#[derive(Default)]
pub(crate) struct WriteBuffer {
    segments: [Mutex<HashMap<u32, Arc<Segment>>>; SHARDS],
    queue: Mutex<Queue>,
    wake: Condvar,
}

#[derive(Default)]
struct Queue {
    full: VecDeque<Arc<Segment>>,
    stopped: bool,
}

impl WriteBuffer {
    fn shard(&self, slot: u32) -> &Mutex<HashMap<u32, Arc<Segment>>> {
        let segment = usize::try_from(slot / SEGMENT_SLOTS).unwrap_or(0);
        &self.segments[segment % SHARDS]
    }

    /// The segment of a slot, if it is not on the device.
    pub(crate) fn find(&self, slot: u32) -> Option<Arc<Segment>> {
        self.shard(slot)
            .lock()
            .get(&(slot / SEGMENT_SLOTS))
            .cloned()
    }

    pub(crate) fn open(&self, first: u32) -> Arc<Segment> {
        let segment = Arc::new(Segment::new(first));
        self.shard(first)
            .lock()
            .insert(first / SEGMENT_SLOTS, segment.clone());
        segment
    }

    pub(crate) fn forget(&self, first: u32) {
        self.shard(first).lock().remove(&(first / SEGMENT_SLOTS));
    }

    /// Do as many full segments wait for the device as may?
    pub(crate) fn is_backpressured(&self) -> bool {
        self.queue.lock().full.len() >= QUEUE
    }

    pub(crate) fn submit(&self, segment: Arc<Segment>) {
        self.queue.lock().full.push_back(segment);
        self.wake.notify_one();
    }

    /// The next full segments, at most `most`; waits for one. None once stopped.
    pub(crate) fn next(&self, most: usize) -> Vec<Arc<Segment>> {
        let mut queue = self.queue.lock();
        while queue.full.is_empty() && !queue.stopped {
            self.wake.wait(&mut queue);
        }
        if queue.stopped {
            return Vec::new();
        }
        let count = most.min(queue.full.len());
        queue.full.drain(..count).collect()
    }

    /// The next full segment, if one waits.
    pub(crate) fn waiting(&self) -> Option<Arc<Segment>> {
        self.queue.lock().full.pop_front()
    }

    pub(crate) fn stop(&self) {
        self.queue.lock().stopped = true;
        self.wake.notify_all();
    }
}
