//! A bounded table from blocks to the hashes of their contents, 16 bytes a block.
//!
//! It has sets of four places; a new block replaces the oldest of its set. Sixteen neighbouring blocks are in neighbouring
//! sets, so that large reads and writes touch few cache lines and take few locks.

use crate::block::{Key, MAX_BLOCK};
use crate::index::scale;
use crate::lock_rank::{LEAF, Ranked, RankedGuard};
use std::ops::Range;

/// Locks.
const SHARDS: usize = 64;

/// Places of a set.
const PLACES: usize = 4;

/// Neighbouring blocks whose sets are neighbours.
const GROUP: u64 = 16;

/// A cache line: for each place the key and the hash, the newest first. A hash of 0 is a free place. A plain array, so
/// that a table of zeroes is memory that the kernel has not handed out yet.
type Set = [u64; 2 * PLACES];

#[derive(Default)]
struct Shard {
    sets: Vec<Set>,
    /// Places in use.
    used: usize,
}

/// The table.
pub(super) struct ResidencyTable {
    shards: Box<[Ranked<Shard, LEAF>]>,
    /// Sets of a shard.
    sets: usize,
    seed: u64,
}

/// A locked place, for one block.
pub(crate) struct ResidentEntry<'a> {
    shard: RankedGuard<'a, Shard>,
    set: usize,
    key: u64,
}

impl ResidencyTable {
    pub(super) fn new(bytes: u64, seed: u64) -> Self {
        let set = u64::try_from(size_of::<Set>()).unwrap_or(64);
        let shards = u64::try_from(SHARDS).unwrap_or(64);
        let sets = usize::try_from(bytes / set / shards).unwrap_or(usize::MAX);
        // The sets of a group are in one shard.
        let sets = sets.max(usize::try_from(GROUP).unwrap_or(16));
        let shard = || {
            Ranked::new(Shard {
                sets: vec![[0; 2 * PLACES]; sets],
                used: 0,
            })
        };
        Self {
            shards: (0..SHARDS).map(|_| shard()).collect(),
            sets,
            seed,
        }
    }

    pub(super) fn lock(&self, key: Key) -> ResidentEntry<'_> {
        let (shard, first) = self.group(key.raw() / GROUP);
        ResidentEntry {
            shard: self.shards[shard].lock(),
            set: self.set(first, key.raw()),
            key: key.raw(),
        }
    }

    pub(super) fn forget(&self, disk: u32, blocks: Range<u64>) {
        let end = blocks.end.min(MAX_BLOCK + 1);
        let Some(last) = end.checked_sub(1).filter(|last| blocks.start <= *last) else {
            return;
        };
        let (Some(first), Some(last)) = (Key::new(disk, blocks.start), Key::new(disk, last)) else {
            return;
        };
        let keys = first.raw()..=last.raw();
        if end - blocks.start > self.capacity() {
            return self.sweep(|key| keys.contains(&key));
        }
        for group in first.raw() / GROUP..=last.raw() / GROUP {
            let (shard, set) = self.group(group);
            let mut shard = self.shards[shard].lock();
            if shard.used == 0 {
                continue;
            }
            let start = first.raw().max(group * GROUP);
            let end = last.raw().min(group * GROUP + (GROUP - 1));
            for key in start..=end {
                shard.remove(self.set(set, key), key);
            }
        }
    }

    /// Forgets the blocks that `wanted` accepts.
    fn sweep(&self, wanted: impl Fn(u64) -> bool) {
        for shard in &self.shards {
            let mut shard = shard.lock();
            for set in 0..shard.sets.len() {
                if shard.used == 0 {
                    break;
                }
                for place in (0..PLACES).rev() {
                    let [key, hash] = shard.place(set, place);
                    if hash != 0 && wanted(key) {
                        shard.remove(set, key);
                    }
                }
            }
        }
    }

    pub(super) fn len(&self) -> u64 {
        let used = self.shards.iter().map(|shard| shard.lock().used);
        u64::try_from(used.sum::<usize>()).unwrap_or(u64::MAX)
    }

    pub(super) fn capacity(&self) -> u64 {
        u64::try_from(SHARDS * self.sets * PLACES).unwrap_or(u64::MAX)
    }

    /// The shard of a group, and the first of its sets.
    fn group(&self, group: u64) -> (usize, usize) {
        let hash = Key::from_raw(group).hash(self.seed);
        (scale(hash >> 32, SHARDS), scale(hash, self.sets))
    }

    fn set(&self, first: usize, key: u64) -> usize {
        (first + usize::try_from(key % GROUP).unwrap_or(0)) % self.sets
    }
}

impl Shard {
    fn place(&self, set: usize, place: usize) -> [u64; 2] {
        let set = &self.sets[set];
        [set[2 * place], set[2 * place + 1]]
    }

    fn find(&self, set: usize, key: u64) -> Option<(usize, u64)> {
        (0..PLACES).find_map(|place| {
            let [found, hash] = self.place(set, place);
            (found == key && hash != 0).then_some((place, hash))
        })
    }

    fn remove(&mut self, set: usize, key: u64) -> Option<u64> {
        let (place, hash) = self.find(set, key)?;
        let set = &mut self.sets[set];
        // Later places move up, to keep the order.
        set.copy_within(2 * (place + 1).., 2 * place);
        set[2 * (PLACES - 1)..].fill(0);
        self.used -= 1;
        Some(hash)
    }
}

impl ResidentEntry<'_> {
    /// The hash of the block's content, if it is known.
    pub(crate) fn get(&self) -> Option<ContentHash> {
        let (_, hash) = self.shard.find(self.set, self.key)?;
        Some(ContentHash(hash))
    }

    /// Sets the hash of the block's content. It may replace the block of the set that was set longest ago.
    pub(crate) fn set(&mut self, hash: ContentHash) {
        let shard = &mut *self.shard;
        shard.remove(self.set, self.key);
        let set = &mut shard.sets[self.set];
        let forgotten = set[2 * PLACES - 1] != 0;
        set.copy_within(..2 * (PLACES - 1), 2);
        set[..2].copy_from_slice(&[self.key, hash.0]);
        shard.used += usize::from(!forgotten);
    }

    /// Forgets the block.
    pub(crate) fn remove(&mut self) {
        self.shard.remove(self.set, self.key);
    }
}

/// A keyed hash of a block's content. Never 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ContentHash(pub(super) u64);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    fn key(n: u64) -> Key {
        Key::new(1 + u32::try_from(n % 2).unwrap(), n / 2).unwrap()
    }

    fn get(table: &ResidencyTable, n: u64) -> Option<u64> {
        table.lock(key(n)).get().map(|hash| hash.0)
    }

    proptest! {
        /// As long as it is large enough it is a map, whatever is set, removed and forgotten.
        #[test]
        fn is_a_map_while_it_has_room(ops in prop::collection::vec((0_u64..600, 0_u8..8), 1..1500)) {
            let table = ResidencyTable::new(4 << 20, 7);
            let mut model = HashMap::new();
            for (step, (n, op)) in (1_u64..).zip(ops) {
                match op {
                    0 => {
                        table.lock(key(n)).remove();
                        model.remove(&n);
                    }
                    1 => {
                        let (disk, first) = (1 + u32::try_from(n % 2).unwrap(), n / 2);
                        let blocks = [first..first + n % 40, first..u64::MAX, 5..5][usize::try_from(step % 3).unwrap()].clone();
                        table.forget(disk, blocks.clone());
                        model.retain(|m, _| m % 2 != n % 2 || !blocks.contains(&(m / 2)));
                    }
                    _ => {
                        table.lock(key(n)).set(ContentHash(step));
                        model.insert(n, step);
                    }
                }
                prop_assert_eq!(table.len(), u64::try_from(model.len()).unwrap());
                prop_assert_eq!(get(&table, n), model.get(&n).copied());
            }
            for n in 0..600 {
                prop_assert_eq!(get(&table, n), model.get(&n).copied());
            }
        }

        /// A small one forgets, and never answers with another block's hash.
        #[test]
        fn what_it_knows_is_right(ns in prop::collection::vec(0_u64..40_000, 1..3000)) {
            let table = ResidencyTable::new(1, 7);
            for n in &ns {
                table.lock(key(*n)).set(ContentHash(n + 1));
                prop_assert_eq!(get(&table, *n), Some(n + 1));
            }
            prop_assert!(table.len() <= table.capacity());
            let known = ns.iter().filter_map(|n| Some((n, get(&table, *n)?)));
            for (n, hash) in known {
                prop_assert_eq!(hash, n + 1);
            }
        }
    }

    #[test]
    fn a_full_table_knows_what_was_set_last() {
        let table = ResidencyTable::new(1 << 20, 7);
        let capacity = table.capacity();
        assert_eq!(capacity * 16, 1 << 20);
        for n in 0..4 * capacity {
            table.lock(key(n)).set(ContentHash(n + 1));
        }
        assert!(table.len() > capacity * 9 / 10, "{}", table.len());
        let last = 4 * capacity - capacity / 2..4 * capacity;
        let known = last.clone().filter(|n| get(&table, *n).is_some()).count();
        assert!(
            u64::try_from(known).unwrap() > capacity / 2 * 8 / 10,
            "{known}"
        );
    }
}
