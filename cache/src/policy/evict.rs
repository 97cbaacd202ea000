//! Eviction: which block is next, and whether its use spares it.

use super::ghost::RemovalReason;
use super::pool_policy::{PROBATIONARY, PROTECTED, PoolPolicy};
use crate::block::Key;
use crate::config::Policy;
use crate::index::{Index, Location};
use crate::store::{FreeList, Links, MemoryStore, NIL, SlotMeta};

/// S3-FIFO's small queue, in percent of the pool.
const SMALL_PERCENT: u64 = 10;

/// Where evicted blocks go that were used while they were here: the other store of a hybrid pool.
pub(crate) trait Demotion {
    /// Copies the content of a slot, whose owner the caller is or which the index names; where to, if there is room. The
    /// location is the caller's until it is in the index.
    fn copy(&self, key: Key, slot: u32) -> Option<Location>;

    /// May the index name the location? Asked under the lock of the key's shard.
    fn is_valid(&self) -> bool;

    /// Frees a location that is not used after all.
    fn undo(&self, location: Location);
}

/// The result of considering a block for eviction.
enum EvictionStep {
    /// It is being filled or freed.
    Skipped,
    Spared,
    Evicted,
    /// It is in the other store now.
    Demoted,
}

/// What an eviction has done.
#[derive(Default)]
pub(crate) struct Evicted {
    /// The slots that became free.
    pub(crate) free: FreeList,
    /// Blocks that are not cached any more.
    pub(crate) dropped: u32,
    /// Blocks that are in the other store now.
    pub(crate) demoted: u32,
}

impl PoolPolicy {
    /// Frees up to `want` slots: free ones first, then those of evicted blocks. Of these the ones that were used since they
    /// were put go to `demotion`.
    pub(crate) fn evict(
        &mut self,
        store: &MemoryStore,
        index: &Index,
        want: u32,
        demotion: Option<&dyn Demotion>,
    ) -> Evicted {
        let mut done = Evicted {
            free: self.free.split(store, want),
            ..Evicted::default()
        };
        let mut cursor = [NIL; 2];
        // A block is spared at most MAX_USES times in a row; the rest is for slots that cannot be evicted.
        let mut steps = u64::from(self.len()) * 5;
        while done.free.len() < want && self.len() > 0 && steps > 0 {
            steps -= 1;
            let list = self.list_to_evict_from(store);
            let at = match (self.policy, list, self.hand) {
                (Policy::Sieve, PROBATIONARY, Some(hand)) => hand,
                (Policy::Sieve, PROBATIONARY, None) => self.lists[PROBATIONARY].oldest(),
                _ if cursor[list] == NIL => self.lists[list].oldest(),
                _ => cursor[list],
            };
            if at == NIL {
                break;
            }
            let next = store.newer(at);
            let step = self.evict_or_spare(store, index, list, at, demotion);
            let (dropped, demoted) = match step {
                EvictionStep::Skipped | EvictionStep::Spared => (0, 0),
                EvictionStep::Evicted => (1, 0),
                EvictionStep::Demoted => (0, 1),
            };
            if dropped + demoted > 0 {
                done.free.push(store, at);
            }
            done.dropped += dropped;
            done.demoted += demoted;
            cursor[list] = next;
            if self.policy == Policy::Sieve && list == PROBATIONARY {
                self.hand = Some(next).filter(|s| *s != NIL);
            }
        }
        done
    }

    fn list_to_evict_from(&self, store: &MemoryStore) -> usize {
        let [probationary, protected] =
            [PROBATIONARY, PROTECTED].map(|list| self.lists[list].len());
        let from_protected = match self.policy {
            _ if probationary == 0 || protected == 0 => probationary == 0,
            // One list; what another policy left in the second is evicted first.
            Policy::Fifo | Policy::Sieve => true,
            Policy::Ghost => {
                let [probationary, protected] = [PROBATIONARY, PROTECTED]
                    .map(|list| store.meta(self.lists[list].oldest()).time);
                self.split.evicts_protected(probationary, protected)
            }
            Policy::S3Fifo => {
                let all = u64::from(probationary) + u64::from(protected);
                u64::from(probationary) * 100 < all * SMALL_PERCENT
            }
        };
        usize::from(from_protected)
    }

    /// Evicts a block, or spares it because it was used.
    fn evict_or_spare(
        &mut self,
        store: &MemoryStore,
        index: &Index,
        list: usize,
        slot: u32,
        demotion: Option<&dyn Demotion>,
    ) -> EvictionStep {
        let key = store.key(slot);
        let mut entry = index.lock(key);
        let Some(entry_ref) = entry.find_at(Location::memory(slot)) else {
            return EvictionStep::Skipped;
        };
        let uses = entry.uses(entry_ref);
        let spared = match (self.policy, list) {
            (Policy::Fifo | Policy::Ghost, _) => None,
            (Policy::Sieve, _) | (Policy::S3Fifo, PROBATIONARY) => (uses > 0).then_some(0),
            (Policy::S3Fifo, _) => uses.checked_sub(1),
        };
        let hash = entry.hash();
        if let Some(uses) = spared {
            entry.set_uses(entry_ref, uses);
            drop(entry);
            self.spare(store, slot);
            return EvictionStep::Spared;
        }
        let reused = uses > 0 || store.meta(slot).reused;
        match demotion.filter(|_| reused) {
            Some(demotion) => {
                drop(entry);
                match demote(store, index, key, slot, demotion) {
                    Demoted::Moved => {
                        self.unlink(store, slot);
                        self.split.evicted(list, self.len());
                        return EvictionStep::Demoted;
                    }
                    Demoted::Changed => return EvictionStep::Skipped,
                    Demoted::Dropped => {}
                }
            }
            None => {
                entry.remove(entry_ref);
                drop(entry);
            }
        }
        self.unlink(store, slot);
        self.remember_evicted(hash, list);
        self.split.evicted(list, self.len());
        EvictionStep::Evicted
    }

    /// Notes that a block was used, as its use counter is cleared.
    fn spare(&mut self, store: &MemoryStore, slot: u32) {
        let meta = SlotMeta {
            reused: true,
            ..store.meta(slot)
        };
        if self.policy == Policy::S3Fifo {
            self.unlink(store, slot);
            let list = PROTECTED;
            store.set_meta(slot, SlotMeta { list, ..meta });
            self.lists[PROTECTED].push(store, slot);
        } else if !store.meta(slot).reused {
            store.set_meta(slot, meta);
        }
    }

    fn remember_evicted(&mut self, hash: u64, list: usize) {
        let reason = match (self.policy, list) {
            (Policy::Ghost | Policy::S3Fifo, PROBATIONARY) => RemovalReason::Probationary,
            (Policy::Ghost, _) => RemovalReason::Protected,
            _ if self.is_hybrid() => RemovalReason::Probationary,
            _ => return,
        };
        self.ghost.remember(hash, reason);
    }
}

/// What became of a block that was to go to the other store.
enum Demoted {
    /// It is there.
    Moved,
    /// It is in neither store: there was no room.
    Dropped,
    /// The slot is not the block's any more.
    Changed,
}

/// Moves the block of a slot to the other store. The list that the slot is in is locked, so that until the end the slot
/// belongs to no other block, and its content stays; the index is asked again whether it is still the block's.
fn demote(
    store: &MemoryStore,
    index: &Index,
    key: Key,
    slot: u32,
    demotion: &dyn Demotion,
) -> Demoted {
    let copy = demotion.copy(key, slot);
    let mut entry = index.lock(key);
    let found = entry.find_at(Location::memory(slot));
    debug_assert_eq!(store.key(slot), key);
    let moved = match (found, copy) {
        (Some(entry_ref), Some(copy)) if demotion.is_valid() => {
            entry.relocated(entry_ref, copy);
            entry.set_uses(entry_ref, 0);
            return Demoted::Moved;
        }
        (Some(entry_ref), _) => {
            entry.remove(entry_ref);
            Demoted::Dropped
        }
        (None, _) => Demoted::Changed,
    };
    drop(entry);
    if let Some(copy) = copy {
        demotion.undo(copy);
    }
    moved
}
