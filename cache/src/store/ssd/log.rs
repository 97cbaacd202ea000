//! A pool's log in the SSD store.

use super::store::SsdStore;
use super::store::{EXTENT_SLOTS, FREE, SEALED};
use super::write_buffer::{Owner, SEGMENT_SLOTS, Segment};
use crate::block::{Block, Key};
use crate::index::{Index, Location};
use crate::store::list::{Links, List, NIL};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The extents of a pool: an open one, which is being filled, and the others from newest to oldest.
#[derive(Default)]
pub(crate) struct SsdLog {
    open: Option<Open>,
    pub(super) sealed: List,
    /// The number of extents opened so far.
    pub(super) opened: u32,
    /// The number of blocks that may be reinserted: that of inserted blocks, at most a turn of the log.
    reinsertable: u64,
    /// The pool is being destroyed: no block is admitted.
    pub(crate) closed: bool,
}

struct Open {
    extent: u32,
    next: u32,
    segment: Arc<Segment>,
}

/// The result of a put.
pub(crate) enum Append {
    /// The block's slot.
    Done(u32),
    /// No extent is free.
    Full,
    /// Too many segments of the pool or its VM wait for the device, or the pool is closed.
    Refused,
}

impl SsdLog {
    /// The number of the pool's extents.
    pub(crate) fn len(&self) -> u32 {
        self.sealed.len() + u32::from(self.open.is_some())
    }

    /// The number of extents opened since that of a slot of this log.
    pub(crate) fn age(&self, ssd: &SsdStore, slot: u32) -> u32 {
        let extent = ssd.extent(slot / EXTENT_SLOTS);
        self.opened
            .wrapping_sub(extent.opened.load(Ordering::SeqCst))
    }

    /// May a block be reinserted? The limit is the number of other inserted blocks, so reinsertion at most doubles the device's
    /// writes.
    pub(crate) const fn may_reinsert(&self) -> bool {
        self.reinsertable > 0
    }

    /// Counts an inserted or `reinserted` block. `turn` is the pool's share of the store, blocks.
    pub(crate) fn count_insertion(&mut self, reinserted: bool, turn: u64) {
        self.reinsertable = match reinserted {
            true => self.reinsertable.saturating_sub(1),
            false => (self.reinsertable + 1).min(turn),
        };
    }

    /// The free slots of the open extent.
    pub(crate) fn room(&self) -> u32 {
        self.open
            .as_ref()
            .map_or(0, |open| EXTENT_SLOTS - open.next)
    }

    /// Is the next block the last of its segment?
    fn fills_segment(&self) -> bool {
        let next = self.open.as_ref().map_or(0, |open| open.next);
        (next + 1).is_multiple_of(SEGMENT_SLOTS)
    }

    /// Takes the next slot for a block; also returns whether that opened an extent. The caller owns the slot until it is in the
    /// index, or returned with [`SsdStore::free`].
    pub(crate) fn append(
        &mut self,
        ssd: &SsdStore,
        owner: &Owner,
        key: Key,
        content: &Block,
        sum: u32,
    ) -> (Append, bool) {
        if self.closed || self.fills_segment() && !ssd.write_buffer.has_room(owner) {
            return (Append::Refused, false);
        }
        let mut opened = false;
        let mut open = match self.open.take() {
            Some(open) => open,
            None => {
                let Some(extent) = ssd.take_extent(owner.pool) else {
                    return (Append::Full, false);
                };
                let e = ssd.extent(extent);
                opened = true;
                self.opened = self.opened.wrapping_add(1);
                e.opened.store(self.opened, Ordering::SeqCst);
                Open {
                    extent,
                    next: 0,
                    segment: ssd.write_buffer.open(extent * EXTENT_SLOTS, *owner),
                }
            }
        };
        let slot = open.extent * EXTENT_SLOTS + open.next;
        let (chunk, i) = ssd.slot(slot);
        chunk.keys[i].store(key.raw(), Ordering::Relaxed);
        chunk.sums[i].store(sum, Ordering::Relaxed);
        let e = ssd.extent(open.extent);
        e.live.fetch_or(1 << open.next, Ordering::SeqCst);
        open.segment.put(slot, content);
        open.next += 1;
        if open.next % SEGMENT_SLOTS == 0 {
            e.pending.fetch_add(1, Ordering::SeqCst);
            ssd.write_buffer.submit(open.segment.clone());
            if open.next == EXTENT_SLOTS {
                e.state.store(SEALED, Ordering::SeqCst);
                self.sealed.push(ssd, open.extent);
                return (Append::Done(slot), opened);
            }
            open.segment = ssd.write_buffer.open(slot + 1, *owner);
        }
        self.open = Some(open);
        (Append::Done(slot), opened)
    }

    /// Empties the oldest extents until `want` are free or about to be. Returns how many are free, and how many blocks were
    /// evicted.
    pub(crate) fn evict(&mut self, ssd: &SsdStore, index: &Index, want: u32) -> (u32, u32) {
        let (mut freed, mut evicted) = (0, 0);
        let mut at = self.sealed.oldest();
        let mut looked = 0;
        while at != NIL && looked < want {
            looked += 1;
            let next = ssd.newer(at);
            evicted += ssd.empty(index, at);
            freed += u32::from(self.release(ssd, at, false));
            at = next;
        }
        // Only the open extent remains.
        if looked < want
            && let Some(extent) = self.open.as_ref().map(|o| o.extent)
        {
            evicted += ssd.empty(index, extent);
            self.seal(ssd);
            freed += u32::from(self.release(ssd, extent, false));
        }
        (freed, evicted)
    }

    /// Empties one extent, anywhere in the log, and retires it. Returns `true` when that is done.
    pub(crate) fn evict_extent(&mut self, ssd: &SsdStore, index: &Index, extent: u32) -> bool {
        ssd.empty(index, extent);
        if self.open.as_ref().is_some_and(|o| o.extent == extent) {
            self.seal(ssd);
        }
        self.release(ssd, extent, true)
    }

    /// The extents, oldest first.
    pub(crate) fn extents(&self, ssd: &SsdStore) -> Vec<u32> {
        let mut at = self.sealed.oldest();
        let mut all = Vec::new();
        while at != NIL {
            all.push(at);
            at = ssd.newer(at);
        }
        all.extend(self.open.as_ref().map(|o| o.extent));
        all
    }

    /// Closes the open extent. Its last segment is written only if a slot of it is in the index, or is just being added.
    pub(super) fn seal(&mut self, ssd: &SsdStore) {
        let Some(open) = self.open.take() else {
            return;
        };
        let e = ssd.extent(open.extent);
        if e.live.load(Ordering::SeqCst) & segment_bits(open.segment.first) == 0 {
            ssd.write_buffer.forget(open.segment.first);
        } else {
            e.pending.fetch_add(1, Ordering::SeqCst);
            ssd.write_buffer.submit(open.segment);
        }
        e.state.store(SEALED, Ordering::SeqCst);
        self.sealed.push(ssd, open.extent);
    }

    /// Frees an extent of this log if it has no blocks and no pending writes. Returns `true` when it is free. With `discard` it
    /// becomes usable only after the discard ([`SsdStore::discard_retired`]), which this does not wait for.
    pub(crate) fn release(&mut self, ssd: &SsdStore, extent: u32, discard: bool) -> bool {
        let e = ssd.extent(extent);
        if e.state.load(Ordering::SeqCst) != SEALED
            || e.live.load(Ordering::SeqCst) != 0
            || e.pending.load(Ordering::SeqCst) != 0
        {
            return false;
        }
        self.sealed.remove(ssd, extent);
        e.state.store(FREE, Ordering::SeqCst);
        e.epoch.fetch_add(1, Ordering::SeqCst);
        if discard {
            ssd.retire(extent);
        } else {
            ssd.return_extent(extent);
        }
        true
    }
}

/// The bits of a segment's slots in their extent.
const fn segment_bits(first: u32) -> u64 {
    ((1 << SEGMENT_SLOTS) - 1) << (first % EXTENT_SLOTS)
}

impl SsdStore {
    /// Removes an extent's blocks from the index.
    fn empty(&self, index: &Index, extent: u32) -> u32 {
        let e = self.extent(extent);
        let mut live = e.live.load(Ordering::SeqCst);
        let mut evicted = 0;
        while live != 0 {
            let bit = live.trailing_zeros();
            live &= live - 1;
            let slot = extent * EXTENT_SLOTS + bit;
            if self.unindex(index, slot) {
                e.live.fetch_and(!(1 << bit), Ordering::SeqCst);
                evicted += 1;
            }
        }
        self.withdraw_dead(extent);
        evicted
    }

    /// Withdraws queued segments of an extent that have no blocks any more: a pool of low weight could wait long for their
    /// writes. Call it under the lock of the extent's log.
    fn withdraw_dead(&self, extent: u32) {
        let e = self.extent(extent);
        if e.pending.load(Ordering::SeqCst) == 0 {
            return;
        }
        for at in (0..EXTENT_SLOTS).step_by(usize::try_from(SEGMENT_SLOTS).unwrap_or(1)) {
            let first = extent * EXTENT_SLOTS + at;
            let is_dead = e.live.load(Ordering::SeqCst) & segment_bits(first) == 0;
            if is_dead
                && let Some(segment) = self.write_buffer.find(first)
                && self.write_buffer.withdraw(&segment)
            {
                self.written(&segment);
            }
        }
    }

    /// Removes a slot's block from the index. Returns `true` when the caller owns the slot now. It does nothing once the store
    /// is closed: its blocks are swept out, and the location may already belong to the next store.
    pub(crate) fn unindex(&self, index: &Index, slot: u32) -> bool {
        let location = Location::ssd(slot);
        let mut entry = index.lock(self.key(slot));
        let Some(entry_ref) = entry.find_at(location).filter(|_| !self.closed()) else {
            return false;
        };
        entry.remove(entry_ref);
        true
    }

    /// Frees a slot; its owner calls it. Returns `true` when its extent may be free now.
    pub(crate) fn free(&self, slot: u32) -> bool {
        let bit = 1 << (slot % EXTENT_SLOTS);
        let e = self.extent(slot / EXTENT_SLOTS);
        e.live.fetch_and(!bit, Ordering::SeqCst) == bit
    }
}
