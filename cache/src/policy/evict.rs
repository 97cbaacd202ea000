//! Eviction: which block is next, and whether its use spares it.

use super::ghost::EvictionReason;
use super::pool_policy::{PROBATIONARY, PROTECTED, PoolPolicy};
use crate::config::Policy;
use crate::index::{Index, Location};
use crate::store::{FreeList, Links, MemoryStore, NIL, SlotMeta};

/// S3-FIFO's small queue, in percent of the pool.
const SMALL_PERCENT: u64 = 10;

/// The result of considering a block for eviction.
enum EvictionStep {
    /// It is being filled or freed.
    Skipped,
    Spared,
    Evicted,
}

impl PoolPolicy {
    /// Frees up to `want` slots: free ones first, then those of evicted blocks. Also returns how many blocks were evicted.
    pub(crate) fn evict(
        &mut self,
        store: &MemoryStore,
        index: &Index,
        want: u32,
    ) -> (FreeList, u32) {
        let mut freed = self.free.split(store, want);
        let mut evicted = 0;
        let mut cursor = [NIL; 2];
        // A block is spared at most MAX_USES times in a row; the rest is for slots that cannot be evicted.
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
            // One list; what another policy left in the second is evicted first.
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

    /// Evicts a block, or spares it because it was used.
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
