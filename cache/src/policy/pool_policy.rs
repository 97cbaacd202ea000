//! The lists of a pool.

use super::adaptive_split::AdaptiveSplit;
use super::ghost::{EvictionReason, Ghost};
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
        if !matches!(policy, Policy::Ghost | Policy::S3Fifo) {
            self.ghost = Ghost::default();
        }
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
        let list = match self.policy {
            Policy::Fifo | Policy::Sieve => PROBATIONARY,
            Policy::Ghost | Policy::S3Fifo => match self.ghost.recall(hash) {
                None => PROBATIONARY,
                Some(how) => {
                    self.split.returned(how, self.len());
                    PROTECTED
                }
            },
        };
        store.set_key(slot, key);
        let time = self.split.now();
        store.set_meta(slot, SlotMeta { pool, list, time });
        self.lists[list].push(store, slot);
        self.size_ghost();
        Some(slot)
    }

    /// A hit removed the block (exclusive caches): the ghost list remembers it as reused.
    pub(crate) fn promoted(&mut self, hash: u64) {
        if self.policy == Policy::Ghost {
            self.ghost.remember(hash, EvictionReason::Promoted);
        }
    }

    /// The ghost list remembers half as many blocks again as the pool has. It grows in steps, as a resize clears it.
    fn size_ghost(&mut self) {
        if !matches!(self.policy, Policy::Ghost | Policy::S3Fifo) {
            return;
        }
        let len = usize::try_from(self.len()).unwrap_or(usize::MAX);
        let capacity = self.ghost.capacity();
        if len + len / 8 > capacity || capacity > 4 * len.max(64) {
            self.ghost.resize((len + len / 2).max(32));
        }
    }

    /// Takes a slot off its list.
    pub(crate) fn unlink(&mut self, store: &MemoryStore, slot: u32) {
        if self.hand == Some(slot) {
            self.hand = Some(store.newer(slot)).filter(|s| *s != NIL);
        }
        self.lists[store.meta(slot).list].remove(store, slot);
    }

    /// Puts a slot that came from another pool of the VM at the newest end.
    pub(crate) fn adopt(&mut self, store: &MemoryStore, pool: u32, slot: u32) {
        let meta = SlotMeta {
            pool,
            list: PROBATIONARY,
            time: self.split.now(),
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
