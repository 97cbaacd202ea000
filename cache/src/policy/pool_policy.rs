//! The lists of a pool.

use super::adaptive_split::AdaptiveSplit;
use super::ghost::{Ghost, RemovalReason};
use crate::block::Key;
use crate::config::Policy;
use crate::store::{FreeList, Links, List, MemoryStore, NIL, SlotMeta};

/// Blocks that were put for the first time, and blocks that were reused.
pub(super) const PROBATIONARY: usize = 0;
pub(super) const PROTECTED: usize = 1;

/// A pool's part of the memory store.
#[derive(Default)]
pub(crate) struct PoolPolicy {
    pub(super) policy: Policy,
    pub(super) lists: [List; 2],
    /// SIEVE's hand; [`NIL`] is at the oldest.
    pub(super) hand: Option<u32>,
    pub(super) ghost: Ghost,
    pub(super) split: AdaptiveSplit,
    /// Of a hybrid pool: blocks of the SSD that it is entitled to.
    hybrid: Option<u32>,
    /// Slots without blocks that the pool holds.
    pub(crate) free: FreeList,
    /// The pool is being destroyed: nothing is admitted.
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
            self.ghost = Ghost::default();
        }
    }

    /// The pool is a hybrid one, and entitled to so many blocks of the SSD; `None` when it is not. A hybrid pool has a ghost
    /// list whatever its policy, as long as both stores together, so that a block of which the SSD has room is recalled.
    pub(crate) fn set_hybrid(&mut self, ssd_blocks: Option<u32>) {
        self.hybrid = ssd_blocks;
        if self.has_ghost() {
            self.shrink_ghost();
        } else {
            self.ghost = Ghost::default();
        }
    }

    /// Is the pool a hybrid one?
    pub(super) const fn is_hybrid(&self) -> bool {
        self.hybrid.is_some()
    }

    const fn has_ghost(&self) -> bool {
        matches!(self.policy, Policy::Ghost | Policy::S3Fifo) || self.hybrid.is_some()
    }

    /// Does the block belong on the SSD, since it was read there last, and so late that it would not have stayed in memory?
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
        let list = match (self.policy, recalled) {
            (Policy::Fifo | Policy::Sieve, _) | (_, None) => PROBATIONARY,
            (Policy::Ghost | Policy::S3Fifo, Some(how)) => {
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

    /// Takes a slot with a block, whose key is set, which is newer than all others of the list. It is in no list.
    pub(crate) fn restore(
        &mut self,
        store: &MemoryStore,
        pool: u32,
        slot: u32,
        list: usize,
        reused: bool,
    ) {
        let list = match self.policy {
            Policy::Fifo | Policy::Sieve => PROBATIONARY,
            Policy::Ghost | Policy::S3Fifo => list.min(PROTECTED),
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

    /// A hit removed the block (exclusive caches): the ghost list remembers it as reused.
    pub(crate) fn taken_by_hit(&mut self, hash: u64) {
        if self.policy == Policy::Ghost || self.hybrid.is_some() {
            self.ghost.remember(hash, RemovalReason::TakenByHit);
        }
    }

    /// A hit on the SSD removed the block of a hybrid pool; `fits` when it came so early that the block would have stayed in
    /// memory: its next put goes to memory then, and to the SSD otherwise.
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

    /// The ghost list remembers half as many blocks again as the pool has. It grows in steps of a third, as a resize clears
    /// it: when the pool has grown to eight ninths of what it remembers.
    fn grow_ghost(&mut self) {
        let len = self.ghost_blocks();
        if self.has_ghost() && len + len / 8 > self.ghost.capacity() {
            self.ghost.resize((len + len / 2).max(32));
        }
    }

    /// It shrinks when the pool has shrunk to a quarter of it, so that all lists together are bounded by four times what the
    /// stores hold, however blocks and weights go from pool to pool.
    fn shrink_ghost(&mut self) {
        let len = self.ghost_blocks();
        if self.ghost.capacity() > 4 * len.max(64) {
            self.ghost.resize((len + len / 2).max(32));
        }
    }

    /// Blocks that the ghost list's length follows.
    fn ghost_blocks(&self) -> usize {
        let len = self.len().saturating_add(self.hybrid.unwrap_or(0));
        usize::try_from(len).unwrap_or(usize::MAX)
    }

    /// Takes a slot off its list.
    pub(crate) fn unlink(&mut self, store: &MemoryStore, slot: u32) {
        if self.hand == Some(slot) {
            self.hand = Some(store.newer(slot)).filter(|s| *s != NIL);
        }
        self.lists[store.meta(slot).list].remove(store, slot);
        self.shrink_ghost();
    }

    /// Puts a slot that came from another pool of the VM at the newest end.
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

    /// Puts `new` where `old` is.
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

#[cfg(test)]
mod tests {
    use super::*;

    const SLOTS: u32 = 4096;

    fn store() -> MemoryStore {
        MemoryStore::new(SLOTS, SLOTS, None).unwrap()
    }

    /// A pool's policy, with so many blocks in its lists.
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
