//! A pool's blocks in memory, and which of them go first.
//!
//! Two lists, newest to oldest, serve every policy. A slot is in one of them from its allocation until its
//! owner (see [`crate::index`]) takes it off, so an element may be a block that is being filled, or one that
//! somebody has just removed from the index; those cannot be evicted and are passed over.

mod adaptive_split;
mod ghost;

use crate::block::Key;
use crate::config::Policy;
use crate::index::{Index, Location};
use crate::store::{FreeList, Links, List, MemoryStore, NIL, SlotMeta};
use adaptive_split::AdaptiveSplit;
use ghost::{EvictionReason, Ghost};

/// Newcomers, and blocks that proved their use.
const PROBATIONARY: usize = 0;
const PROTECTED: usize = 1;

/// S3-FIFO's small queue, in percent of the pool.
const SMALL_PERCENT: u64 = 10;

/// A pool's part of the memory store.
#[derive(Default)]
pub(crate) struct PoolPolicy {
    policy: Policy,
    lists: [List; 2],
    /// SIEVE's hand; [`NIL`] is at the oldest.
    hand: Option<u32>,
    ghost: Ghost,
    split: AdaptiveSplit,
    /// Free slots that the pool holds.
    pub(crate) free: FreeList,
    /// The pool is being destroyed: nothing comes in.
    pub(crate) closed: bool,
}

/// What became of a block that was looked at.
enum EvictionStep {
    /// Not a block now, or not any more.
    Skipped,
    Spared,
    Evicted,
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

    /// Takes a spare slot into the lists for a block; `None` when there is none.
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

    /// A hit took the block out (exclusive caches): remembered, as it was of use.
    pub(crate) fn promoted(&mut self, hash: u64) {
        if self.policy == Policy::Ghost {
            self.ghost.remember(hash, EvictionReason::Promoted);
        }
    }

    /// The ghost remembers half as many blocks again as the pool has; it grows in steps, as a new size
    /// costs it what it knows.
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

    /// Gives up to `want` slots: spare ones, then those of the blocks that go first. The second number is how
    /// many blocks went.
    pub(crate) fn evict(
        &mut self,
        store: &MemoryStore,
        index: &Index,
        want: u32,
    ) -> (FreeList, u32) {
        let mut freed = self.free.split(store, want);
        let mut evicted = 0;
        let mut cursor = [NIL; 2];
        // A block is spared at most MAX_USES times in a row; the rest is for those that cannot be evicted.
        let mut steps = u64::from(self.len()) * 5;
        while freed.len() < want && self.len() > 0 && steps > 0 {
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
            let step = self.evict_or_spare(store, index, list, at);
            if matches!(step, EvictionStep::Evicted) {
                freed.push(store, at);
                evicted += 1;
            }
            cursor[list] = next;
            if self.policy == Policy::Sieve && list == PROBATIONARY {
                self.hand = Some(next).filter(|s| *s != NIL);
            }
        }
        (freed, evicted)
    }

    fn list_to_evict_from(&self, store: &MemoryStore) -> usize {
        let (new, proven) = (self.lists[PROBATIONARY].len(), self.lists[PROTECTED].len());
        let from_proven = match self.policy {
            _ if new == 0 || proven == 0 => new == 0,
            // One list; what another policy left in the second goes first.
            Policy::Fifo | Policy::Sieve => true,
            Policy::Ghost => {
                let [new, proven] =
                    [PROBATIONARY, PROTECTED].map(|l| store.meta(self.lists[l].oldest()).time);
                self.split.evicts_protected(new, proven)
            }
            Policy::S3Fifo => {
                u64::from(new) * 100 < (u64::from(new) + u64::from(proven)) * SMALL_PERCENT
            }
        };
        usize::from(from_proven)
    }

    /// Evicts a block, or spares it as its use demands.
    fn evict_or_spare(
        &mut self,
        store: &MemoryStore,
        index: &Index,
        list: usize,
        slot: u32,
    ) -> EvictionStep {
        let mut entry = index.lock(store.key(slot));
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
            if self.policy == Policy::S3Fifo {
                let meta = store.meta(slot);
                self.unlink(store, slot);
                let list = PROTECTED;
                store.set_meta(slot, SlotMeta { list, ..meta });
                self.lists[PROTECTED].push(store, slot);
            }
            return EvictionStep::Spared;
        }
        entry.remove(entry_ref);
        drop(entry);
        self.unlink(store, slot);
        match (self.policy, list) {
            (Policy::Ghost | Policy::S3Fifo, PROBATIONARY) => {
                self.ghost.remember(hash, EvictionReason::Probationary)
            }
            (Policy::Ghost, _) => self.ghost.remember(hash, EvictionReason::Protected),
            _ => {}
        }
        self.split.evicted(list, self.len());
        EvictionStep::Evicted
    }
}
