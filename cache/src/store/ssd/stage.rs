//! Blocks on their way to the device: found in memory until they have arrived.

use crate::block::Block;
use parking_lot::{Condvar, Mutex, RwLock};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

/// Slots that are written together: 64 KiB.
pub(crate) const UNIT_SLOTS: u32 = 16;

/// Full units that may wait for the device (8 MiB); when it is slower than the puts, puts are lost.
const QUEUE: usize = 128;

const SHARDS: usize = 16;

/// The bytes of a unit, where direct I/O accepts them.
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
pub(crate) struct Unit {
    /// The first slot, a multiple of [`UNIT_SLOTS`].
    pub(crate) first: u32,
    pub(crate) bytes: RwLock<Box<Bytes>>,
}

impl Unit {
    pub(crate) fn new(first: u32) -> Self {
        Self {
            first,
            bytes: RwLock::new(Box::new(Bytes([[0; 4096]; 16]))),
        }
    }

    pub(crate) fn put(&self, slot: u32, content: &Block) {
        let i = usize::try_from(slot % UNIT_SLOTS).unwrap_or(0);
        self.bytes.write().0[i] = *content;
    }
}

/// Units that are not on the device, by number.
#[derive(Default)]
pub(crate) struct Stage {
    units: [Mutex<HashMap<u32, Arc<Unit>>>; SHARDS],
    queue: Mutex<Queue>,
    wake: Condvar,
}

#[derive(Default)]
struct Queue {
    full: VecDeque<Arc<Unit>>,
    stopped: bool,
}

impl Stage {
    fn shard(&self, slot: u32) -> &Mutex<HashMap<u32, Arc<Unit>>> {
        let unit = usize::try_from(slot / UNIT_SLOTS).unwrap_or(0);
        &self.units[unit % SHARDS]
    }

    /// The unit of a slot, if it is not on the device.
    pub(crate) fn find(&self, slot: u32) -> Option<Arc<Unit>> {
        self.shard(slot).lock().get(&(slot / UNIT_SLOTS)).cloned()
    }

    pub(crate) fn open(&self, first: u32) -> Arc<Unit> {
        let unit = Arc::new(Unit::new(first));
        self.shard(first)
            .lock()
            .insert(first / UNIT_SLOTS, unit.clone());
        unit
    }

    pub(crate) fn forget(&self, first: u32) {
        self.shard(first).lock().remove(&(first / UNIT_SLOTS));
    }

    /// Is the device too far behind to take more?
    pub(crate) fn behind(&self) -> bool {
        self.queue.lock().full.len() >= QUEUE
    }

    pub(crate) fn submit(&self, unit: Arc<Unit>) {
        self.queue.lock().full.push_back(unit);
        self.wake.notify_one();
    }

    /// The next full units, at most `most`; waits for one. None once stopped.
    pub(crate) fn next(&self, most: usize) -> Vec<Arc<Unit>> {
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

    /// The next full unit, if one waits.
    pub(crate) fn waiting(&self) -> Option<Arc<Unit>> {
        self.queue.lock().full.pop_front()
    }

    pub(crate) fn stop(&self) {
        self.queue.lock().stopped = true;
        self.wake.notify_all();
    }
}
