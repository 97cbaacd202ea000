//! The lists of a pool, and eviction from them: finds the next block, and evicts or spares it.
//!
//! A slot is in one of the lists from its allocation until its owner (see [`crate::index`]) removes it. So an element may be a
//! block that is being filled, or one that was just removed from the index; those cannot be evicted and are skipped.

use super::adaptive_split::AdaptiveSplit;
use super::ghost_list::{GhostList, RemovalReason};
use super::policies::Policy;
use super::{Lists, PROBATIONARY, PROTECTED};
use crate::block::Key;
use crate::index::{Index, Location};
use crate::store::{FreeList, Links, List, MemoryStore, NIL, SlotMeta};

/// The destination of used blocks on eviction: the other store of a hybrid pool.
pub(crate) trait Demotion {
    /// Copies the content of a slot, which the caller owns or the index names. Returns the new location, if there is room. The
    /// caller owns the location until it is in the index.
    fn copy(&self, key: Key, slot: u32) -> Option<Location>;

    /// May the index name the location? Called under the lock of the key's shard.
    fn is_valid(&self) -> bool;

    /// Frees an unused location.
    fn undo(&self, location: Location);
}

/// The result of considering a block for eviction.
enum EvictionStep {
    /// It is being filled or freed.
    Skipped,
    Spared,
    Evicted,
    /// It was moved to the other store.
    Demoted,
}

/// The result of an eviction.
#[derive(Default)]
pub(crate) struct Evicted {
    /// The slots that became free.
    pub(crate) free: FreeList,
    /// Blocks that were removed from the cache.
    pub(crate) dropped: u32,
    /// Blocks that were moved to the other store.
    pub(crate) demoted: u32,
}

/// A pool's part of the memory store.
#[derive(Default)]
pub(crate) struct PoolPolicy {
    policy: Policy,
    lists: [List; 2],
    /// The slot of the hand; `None`: the oldest block of the first list.
    hand: Option<u32>,
    ghost: GhostList,
    split: AdaptiveSplit,
    /// For a hybrid pool: its entitlement on the SSD, blocks.
    hybrid: Option<u32>,
    /// Slots without blocks that the pool holds.
    pub(crate) free: FreeList,
    /// The pool is being destroyed: no block is admitted.
    pub(crate) closed: bool,
}

impl PoolPolicy {
    pub(crate) fn new(policy: Policy) -> Self {
        Self {
            policy,
            ..Self::default()
        }
    }

    pub(crate) fn set_policy(&mut self, policy: Policy) {
        self.policy = policy;
        if !self.has_ghost() {
            self.ghost = GhostList::default();
        }
    }

    /// Sets the SSD entitlement of a hybrid pool, in blocks; `None` for other pools. With any policy a hybrid pool has a ghost
    /// list as long as both stores together, so that it recalls blocks that fit the SSD.
    pub(crate) fn set_hybrid(&mut self, ssd_blocks: Option<u32>) {
        self.hybrid = ssd_blocks;
        if self.has_ghost() {
            self.shrink_ghost();
        } else {
            self.ghost = GhostList::default();
        }
    }

    /// Is the pool a hybrid one?
    const fn is_hybrid(&self) -> bool {
        self.hybrid.is_some()
    }

    fn has_ghost(&self) -> bool {
        self.policy.decides().has_ghost_list() || self.hybrid.is_some()
    }

    /// Does the block belong on the SSD? Yes if its last read was there, and too late for a stay in memory.
    pub(crate) fn belongs_on_ssd(&mut self, hash: u64) -> bool {
        self.hybrid.is_some() && self.ghost.recall_if(hash, RemovalReason::Distant)
    }

    /// Slots in the lists: blocks, and slots being filled or given back.
    pub(crate) const fn len(&self) -> u32 {
        self.lists[PROBATIONARY].len() + self.lists[PROTECTED].len()
    }

    /// Heap bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.ghost.bytes()
    }

    /// Moves a free slot to the lists, for a block; `None` when there is none.
    pub(crate) fn admit(
        &mut self,
        store: &MemoryStore,
        pool: u32,
        key: Key,
        hash: u64,
    ) -> Option<u32> {
        let slot = self.free.pop(store)?;
        let recalled = match self.has_ghost() {
            true => self.ghost.recall(hash),
            false => None,
        };
        let list = match recalled.filter(|_| self.policy.decides().has_ghost_list()) {
            None => PROBATIONARY,
            Some(how) => {
                self.split.returned(how, self.len());
                PROTECTED
            }
        };
        store.set_key(slot, key);
        let meta = SlotMeta {
            pool,
            list,
            time: self.split.now(),
            reused: recalled.is_some(),
        };
        store.set_meta(slot, meta);
        self.lists[list].push(store, slot);
        self.grow_ghost();
        self.shrink_ghost();
        Some(slot)
    }

    /// The slots of each list, oldest first.
    pub(crate) fn slots_of_lists(&self, store: &MemoryStore) -> [Vec<u32>; 2] {
        [PROBATIONARY, PROTECTED].map(|list| {
            let mut at = self.lists[list].oldest();
            let slots = std::iter::from_fn(|| {
                let slot = Some(at).filter(|s| *s != NIL)?;
                at = store.newer(slot);
                Some(slot)
            });
            slots.collect()
        })
    }

    /// Adds a slot with a block as the newest of the list. Its key is set, and it is in no list.
    pub(crate) fn restore(
        &mut self,
        store: &MemoryStore,
        pool: u32,
        slot: u32,
        list: usize,
        reused: bool,
    ) {
        let list = match self.policy.decides().has_ghost_list() {
            false => PROBATIONARY,
            true => list.min(PROTECTED),
        };
        let meta = SlotMeta {
            pool,
            list,
            time: self.split.now(),
            reused,
        };
        store.set_meta(slot, meta);
        self.lists[list].push(store, slot);
        self.grow_ghost();
    }

    /// Notes that a hit removed the block (exclusive caches): the ghost list remembers it as reused.
    pub(crate) fn taken_by_hit(&mut self, hash: u64) {
        if self.policy.decides().remembers_taken() || self.hybrid.is_some() {
            self.ghost.remember(hash, RemovalReason::TakenByHit);
        }
    }

    /// Notes that a hit on the SSD removed the block of a hybrid pool. `fits`: the hit came early enough for a stay in memory,
    /// so the next put goes to memory, otherwise to the SSD.
    pub(crate) fn taken_from_ssd(&mut self, hash: u64, fits: bool) {
        if self.hybrid.is_some() {
            let reason = if fits {
                RemovalReason::TakenByHit
            } else {
                RemovalReason::Distant
            };
            self.ghost.remember(hash, reason);
        }
    }

    /// The ghost list remembers one and a half times the pool's blocks. A resize clears it, so it grows in steps of a third:
    /// when the pool has grown to eight ninths of its capacity.
    fn grow_ghost(&mut self) {
        let len = self.ghost_blocks();
        if self.has_ghost() && len + len / 8 > self.ghost.capacity() {
            self.ghost.resize((len + len / 2).max(32));
        }
    }

    /// It shrinks when the pool has shrunk to a quarter of it. So all ghost lists together have at most four times the stores'
    /// blocks, however blocks and weights move between pools.
    fn shrink_ghost(&mut self) {
        let len = self.ghost_blocks();
        if self.ghost.capacity() > 4 * len.max(64) {
            self.ghost.resize((len + len / 2).max(32));
        }
    }

    /// The number of blocks that the ghost list's length follows.
    fn ghost_blocks(&self) -> usize {
        let len = self.len().saturating_add(self.hybrid.unwrap_or(0));
        usize::try_from(len).unwrap_or(usize::MAX)
    }

    /// Frees up to `want` slots: free ones first, then those of evicted blocks. Evicted blocks that were used since they were
    /// put go to `demotion`.
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
            let by_hand = list == PROBATIONARY && self.policy.decides().keeps_hand();
            let oldest = self.lists[list].oldest();
            let at = match by_hand {
                true => self.hand.unwrap_or(oldest),
                false if cursor[list] == NIL => oldest,
                false => cursor[list],
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
            if by_hand {
                self.hand = Some(next).filter(|s| *s != NIL);
            }
        }
        done
    }

    fn list_to_evict_from(&self, store: &MemoryStore) -> usize {
        let len = self.lists.each_ref().map(List::len);
        if len.contains(&0) {
            return usize::from(len[PROBATIONARY] == 0);
        }
        let lists = self.lists.each_ref();
        self.policy.decides().list(&Lists {
            len,
            oldest: &|| lists.map(|list| store.meta(list.oldest()).time),
            split: &self.split,
        })
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
        let hash = entry.hash();
        if let Some(uses) = self.policy.decides().spared(list, uses) {
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

    /// Records a block's use, since its use counter is cleared.
    fn spare(&mut self, store: &MemoryStore, slot: u32) {
        let meta = SlotMeta {
            reused: true,
            ..store.meta(slot)
        };
        if self.policy.decides().promotes() {
            self.unlink(store, slot);
            let list = PROTECTED;
            store.set_meta(slot, SlotMeta { list, ..meta });
            self.lists[PROTECTED].push(store, slot);
        } else if !store.meta(slot).reused {
            store.set_meta(slot, meta);
        }
    }

    fn remember_evicted(&mut self, hash: u64, list: usize) {
        let hybrid = self.is_hybrid().then_some(RemovalReason::Probationary);
        let reason = self.policy.decides().remembers_evicted(list);
        if let Some(reason) = reason.or(hybrid) {
            self.ghost.remember(hash, reason);
        }
    }

    /// Takes a slot off its list.
    pub(crate) fn unlink(&mut self, store: &MemoryStore, slot: u32) {
        if self.hand == Some(slot) {
            self.hand = Some(store.newer(slot)).filter(|s| *s != NIL);
        }
        self.lists[store.meta(slot).list].remove(store, slot);
        self.shrink_ghost();
    }

    /// Adds a slot from another pool of the VM at the newest end.
    pub(crate) fn adopt(&mut self, store: &MemoryStore, pool: u32, slot: u32) {
        let meta = SlotMeta {
            pool,
            list: PROBATIONARY,
            time: self.split.now(),
            reused: store.meta(slot).reused,
        };
        store.set_meta(slot, meta);
        self.lists[PROBATIONARY].push(store, slot);
    }

    /// Replaces `old` by `new` in its list.
    pub(crate) fn replace(&mut self, store: &MemoryStore, old: u32, new: u32) {
        let meta = store.meta(old);
        if self.hand == Some(old) {
            self.hand = Some(new);
        }
        store.set_key(new, store.key(old));
        store.set_meta(new, meta);
        self.lists[meta.list].replace(store, old, new);
    }

    /// Every slot in the lists, oldest first.
    pub(crate) fn slots<'a>(&'a self, store: &'a MemoryStore) -> impl Iterator<Item = u32> + 'a {
        self.lists.iter().flat_map(move |list| {
            let mut at = list.oldest();
            std::iter::from_fn(move || {
                let slot = Some(at).filter(|s| *s != NIL)?;
                at = store.newer(slot);
                Some(slot)
            })
        })
    }
}

/// The result of a demotion.
enum Demoted {
    /// It was moved.
    Moved,
    /// It was dropped: there was no room.
    Dropped,
    /// The slot no longer has the block.
    Changed,
}

/// Moves the block of a slot to the other store. The slot's list is locked, so the slot gets no other block and its content
/// stays. The index is checked again at the end.
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

#[cfg(test)]
mod tests {
    use super::*;

    const SLOTS: u32 = 4096;

    fn store() -> MemoryStore {
        MemoryStore::new(SLOTS, SLOTS, None).unwrap()
    }

    /// A pool's policy, with `blocks` blocks in its lists.
    fn filled(store: &MemoryStore, policy: Policy, blocks: u32) -> PoolPolicy {
        let mut filled = PoolPolicy::new(policy);
        for slot in 0..blocks {
            filled.free.push(store, slot);
            let key = Key::from_raw(slot.into());
            filled.admit(store, 1, key, u64::from(slot)).unwrap();
        }
        filled
    }

    #[test]
    fn a_ghost_list_shrinks_with_the_part_of_the_ssd() {
        let store = store();
        let mut policy = PoolPolicy::new(Policy::Sieve);
        policy.set_hybrid(Some(1 << 20));
        policy.free.push(&store, 0);
        policy.admit(&store, 1, Key::from_raw(0), 0).unwrap();
        assert!(policy.bytes() > 1 << 20);
        policy.set_hybrid(Some(1));
        assert!(policy.bytes() < 1 << 10, "{}", policy.bytes());
    }

    #[test]
    fn a_ghost_list_shrinks_when_blocks_go_to_another_pool() {
        let store = store();
        let mut from = filled(&store, Policy::Ghost, SLOTS);
        let before = from.bytes();
        for slot in 0..SLOTS {
            from.unlink(&store, slot);
        }
        assert!(8 * from.bytes() < before, "{} of {before}", from.bytes());
    }
}
