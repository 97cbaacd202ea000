//! The write buffer: blocks are found in memory until they are written to the device.

use super::fair_queue::{Backlog, FairQueue};
use crate::block::{BLOCK_SIZE, Block};
use crate::ids::VmId;
use justitia_share::Weight;
use parking_lot::{Condvar, Mutex, RwLock};
use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::Arc;

/// Slots that are written together: 64 KiB.
pub(crate) const SEGMENT_SLOTS: u32 = 16;

/// The most full segments that wait for the device (8 MiB). A single VM may use all; several VMs with waiting segments divide
/// them by weight. When the device is slower than the puts, puts are dropped.
const QUEUE: usize = 128;

/// The least limit of waiting segments of a VM: one batch of a writer (1 MiB), so that a read of the disk of that size is not
/// dropped.
const LEAST: usize = 16;

const SHARDS: usize = 16;

/// The bytes of a segment, aligned for direct I/O.
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

/// The owner of written blocks, and its weights.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Owner {
    pub(crate) vm: VmId,
    pub(crate) vm_weight: Weight,
    /// The index of a pool of the VM.
    pub(crate) pool: u32,
    /// Its weight among the VM's pools.
    pub(crate) pool_weight: Weight,
}

/// Sixteen neighbouring slots.
pub(crate) struct Segment {
    /// The first slot, a multiple of [`SEGMENT_SLOTS`].
    pub(crate) first: u32,
    owner: Owner,
    pub(crate) bytes: RwLock<Box<Bytes>>,
}

impl Segment {
    fn new(first: u32, owner: Owner) -> Self {
        Self {
            first,
            owner,
            bytes: RwLock::new(Box::new(Bytes([[0; 4096]; 16]))),
        }
    }

    pub(crate) fn put(&self, slot: u32, content: &Block) {
        let i = usize::try_from(slot % SEGMENT_SLOTS).unwrap_or(0);
        self.bytes.write().0[i] = *content;
    }
}

/// Segments that are not yet on the device, by number.
#[derive(Default)]
pub(crate) struct WriteBuffer {
    segments: [Mutex<HashMap<u32, Arc<Segment>>>; SHARDS],
    queue: Mutex<Queue>,
    wake: Condvar,
}

#[derive(Default)]
struct Queue {
    /// By VM, and then by pool.
    full: FairQueue<FairQueue<VecDeque<Arc<Segment>>>>,
    stopped: bool,
}

impl WriteBuffer {
    fn shard(&self, slot: u32) -> &Mutex<HashMap<u32, Arc<Segment>>> {
        let segment = usize::try_from(slot / SEGMENT_SLOTS).unwrap_or(0);
        &self.segments[segment % SHARDS]
    }

    /// The segment of a slot, if it is not yet on the device.
    pub(crate) fn find(&self, slot: u32) -> Option<Arc<Segment>> {
        self.shard(slot)
            .lock()
            .get(&(slot / SEGMENT_SLOTS))
            .cloned()
    }

    pub(crate) fn open(&self, first: u32, owner: Owner) -> Arc<Segment> {
        let segment = Arc::new(Segment::new(first, owner));
        self.shard(first)
            .lock()
            .insert(first / SEGMENT_SLOTS, segment.clone());
        segment
    }

    pub(crate) fn forget(&self, first: u32) {
        self.shard(first).lock().remove(&(first / SEGMENT_SLOTS));
    }

    /// May another segment of this owner wait for the device? Segments of others do not fill its part: the part shrinks as they
    /// come, and they have room in theirs. A VM of many pools can have at most twice its part.
    pub(crate) fn has_room(&self, owner: &Owner) -> bool {
        let queue = &self.queue.lock().full;
        let most = queue.part(owner.vm.0, owner.vm_weight, QUEUE).max(LEAST);
        queue.backlog(owner.vm.0).is_none_or(|pools| {
            let of_pool = pools.part(owner.pool, owner.pool_weight, most).max(1);
            let waiting = pools.backlog(owner.pool).map_or(0, VecDeque::len);
            pools.len() < 2 * most && waiting < of_pool
        })
    }

    pub(crate) fn submit(&self, segment: Arc<Segment>) {
        let owner = segment.owner;
        self.change(&owner, |waiting| waiting.push_back(segment));
        self.wake.notify_one();
    }

    /// Takes a segment back. Returns `false` when a writer has it already.
    pub(crate) fn withdraw(&self, segment: &Arc<Segment>) -> bool {
        self.change(&segment.owner, |waiting| {
            let at = waiting.iter().position(|other| Arc::ptr_eq(other, segment));
            at.and_then(|at| waiting.remove(at)).is_some()
        })
    }

    fn change<R>(&self, owner: &Owner, change: impl FnOnce(&mut VecDeque<Arc<Segment>>) -> R) -> R {
        let mut queue = self.queue.lock();
        queue.full.change(owner.vm.0, owner.vm_weight, |pools| {
            pools.change(owner.pool, owner.pool_weight, change)
        })
    }

    /// The next full segments, at most `most`; waits for one. None once stopped.
    pub(crate) fn next(&self, most: usize) -> Vec<Arc<Segment>> {
        let mut queue = self.queue.lock();
        while queue.full.len() == 0 && !queue.stopped {
            self.wake.wait(&mut queue);
        }
        if queue.stopped {
            return Vec::new();
        }
        let next = std::iter::from_fn(|| queue.full.pop());
        next.take(most).collect()
    }

    /// The next full segment, if one waits.
    pub(crate) fn waiting(&self) -> Option<Arc<Segment>> {
        self.queue.lock().full.pop()
    }

    pub(crate) fn stop(&self) {
        self.queue.lock().stopped = true;
        self.wake.notify_all();
    }
}

// Memory for blocks that are read from the device.

/// A block, aligned for direct I/O.
#[repr(C, align(4096))]
pub(crate) struct Page(pub(crate) Block);

impl Page {
    pub(crate) const fn new() -> Self {
        Self([0; BLOCK_SIZE])
    }
}

/// Blocks that were read: a page for each, and whether it was read.
pub struct BlocksRead {
    pub(crate) pages: Vec<Page>,
    pub(crate) results: Vec<io::Result<()>>,
}
