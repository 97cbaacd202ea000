//! A pool's blocks in memory, and which of them go first.
//!
//! Two lists, newest to oldest, serve every policy. A slot is in one of them from its allocation until its
//! owner (see [`crate::index`]) takes it off, so an element may be a block that is being filled, or one that
//! somebody has just removed from the index; those cannot be evicted and are passed over.

mod balance;
mod ghost;

use crate::block::Key;
use crate::cache::Policy;
use crate::index::{Index, Place};
use crate::store::{Chain, Links, List, MemoryStore, NIL, Owner};
use balance::Balance;
use ghost::{Ghost, Gone};

/// Newcomers, and blocks that proved their use.
const NEW: usize = 0;
const PROVEN: usize = 1;

/// S3-FIFO's small queue, in percent of the pool.
const SMALL_PERCENT: u64 = 10;

/// A pool's part of the memory store.
#[derive(Default)]
pub(crate) struct Shelf {
    policy: Policy,
    lists: [List; 2],
    /// SIEVE's hand; [`NIL`] is at the oldest.
    hand: Option<u32>,
    ghost: Ghost,
    balance: Balance,
    /// Free slots that the pool holds.
    pub(crate) spare: Chain,
    /// The pool is being destroyed: nothing comes in.
    pub(crate) closed: bool,
}

/// What became of a block that was looked at.
enum Judged {
    /// Not a block now, or not any more.
    Passed,
    Spared,
    Evicted,
}

impl Shelf {
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
        self.lists[NEW].len() + self.lists[PROVEN].len()
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
        let slot = self.spare.pop(store)?;
        let list = match self.policy {
            Policy::Fifo | Policy::Sieve => NEW,
            Policy::Ghost | Policy::S3Fifo => match self.ghost.recall(hash) {
                None => NEW,
                Some(how) => {
                    self.balance.returned(how, self.len());
                    PROVEN
                }
            },
        };
        store.set_key(slot, key);
        let time = self.balance.now();
        store.set_owner(slot, Owner { pool, list, time });
        self.lists[list].push(store, slot);
        self.size_ghost();
        Some(slot)
    }

    /// A hit took the block out (exclusive caches): remembered, as it was of use.
    pub(crate) fn taken(&mut self, hash: u64) {
        if self.policy == Policy::Ghost {
            self.ghost.remember(hash, Gone::Taken);
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
        self.lists[store.owner(slot).list].remove(store, slot);
    }

    /// Puts a slot that came from another pool of the VM at the newest end.
    pub(crate) fn adopt(&mut self, store: &MemoryStore, pool: u32, slot: u32) {
        let owner = Owner {
            pool,
            list: NEW,
            time: self.balance.now(),
        };
        store.set_owner(slot, owner);
        self.lists[NEW].push(store, slot);
    }

    /// Puts `new` where `old` is.
    pub(crate) fn replace(&mut self, store: &MemoryStore, old: u32, new: u32) {
        let owner = store.owner(old);
        if self.hand == Some(old) {
            self.hand = Some(new);
        }
        store.set_key(new, store.key(old));
        store.set_owner(new, owner);
        self.lists[owner.list].replace(store, old, new);
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
    pub(crate) fn evict(&mut self, store: &MemoryStore, index: &Index, want: u32) -> (Chain, u32) {
        let mut freed = self.spare.split(store, want);
        let mut evicted = 0;
        let mut cursor = [NIL; 2];
        // A block is spared at most MAX_USES times in a row; the rest is for those that cannot be evicted.
        let mut steps = u64::from(self.len()) * 5;
        while freed.len() < want && self.len() > 0 && steps > 0 {
            steps -= 1;
            let list = self.list_to_evict_from(store);
            let at = match (self.policy, list, self.hand) {
                (Policy::Sieve, NEW, Some(hand)) => hand,
                (Policy::Sieve, NEW, None) => self.lists[NEW].oldest(),
                _ if cursor[list] == NIL => self.lists[list].oldest(),
                _ => cursor[list],
            };
            if at == NIL {
                break;
            }
            let next = store.newer(at);
            let judged = self.judge(store, index, list, at);
            if matches!(judged, Judged::Evicted) {
                freed.push(store, at);
                evicted += 1;
            }
            cursor[list] = next;
            if self.policy == Policy::Sieve && list == NEW {
                self.hand = Some(next).filter(|s| *s != NIL);
            }
        }
        (freed, evicted)
    }

    fn list_to_evict_from(&self, store: &MemoryStore) -> usize {
        let (new, proven) = (self.lists[NEW].len(), self.lists[PROVEN].len());
        let from_proven = match self.policy {
            _ if new == 0 || proven == 0 => new == 0,
            // One list; what another policy left in the second goes first.
            Policy::Fifo | Policy::Sieve => true,
            Policy::Ghost => {
                let [new, proven] = [NEW, PROVEN].map(|l| store.owner(self.lists[l].oldest()).time);
                self.balance.proven_goes(new, proven)
            }
            Policy::S3Fifo => {
                u64::from(new) * 100 < (u64::from(new) + u64::from(proven)) * SMALL_PERCENT
            }
        };
        usize::from(from_proven)
    }

    /// Evicts a block, or spares it as its use demands.
    fn judge(&mut self, store: &MemoryStore, index: &Index, list: usize, slot: u32) -> Judged {
        let mut entry = index.lock(store.key(slot));
        let Some(spot) = entry.find_at(Place::memory(slot)) else {
            return Judged::Passed;
        };
        let uses = entry.uses(spot);
        let spared = match (self.policy, list) {
            (Policy::Fifo | Policy::Ghost, _) => None,
            (Policy::Sieve, _) | (Policy::S3Fifo, NEW) => (uses > 0).then_some(0),
            (Policy::S3Fifo, _) => uses.checked_sub(1),
        };
        let hash = entry.hash();
        if let Some(uses) = spared {
            entry.set_uses(spot, uses);
            drop(entry);
            if self.policy == Policy::S3Fifo {
                let owner = store.owner(slot);
                self.unlink(store, slot);
                let list = PROVEN;
                store.set_owner(slot, Owner { list, ..owner });
                self.lists[PROVEN].push(store, slot);
            }
            return Judged::Spared;
        }
        entry.remove(spot);
        drop(entry);
        self.unlink(store, slot);
        match (self.policy, list) {
            (Policy::Ghost | Policy::S3Fifo, NEW) => self.ghost.remember(hash, Gone::New),
            (Policy::Ghost, _) => self.ghost.remember(hash, Gone::Proven),
            _ => {}
        }
        self.balance.evicted(list, self.len());
        Judged::Evicted
    }
}
