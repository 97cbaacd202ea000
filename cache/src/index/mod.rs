//! Finds the location of a block: hash tables, each under its own lock.
//!
//! The lock of a block's shard protects the block. An entry in the table makes a slot a block. The thread that removes the
//! entry then owns the slot, and must return it to its pool; the slot's content does not change before that. While a shard is
//! locked only leaf locks may be taken.

mod table;

pub(crate) use table::{EntryRef, Location, MAX_SLOTS, REGION, SlotRef, Table, scale};

use crate::block::{Key, MAX_BLOCK};
use crate::lock_rank::{Ranked, RankedGuard, SHARD};
use std::ops::Range;
use table::Regions;

/// The number of shards. Sixteen threads with random hits collide on one of 256 with a probability of a few per cent.
const SHARDS: usize = 256;

/// The buckets that a sweep processes before it unlocks its shard for others: some 800 blocks.
const SWEEP_STEP: usize = 64;

/// The source of a slot's key: the stores.
pub(crate) trait Keys {
    /// The key of the block in the location. Called under the lock of the shard that names the location.
    fn key(&self, location: Location) -> Key;
}

/// A shard on cache lines of its own.
#[repr(align(128))]
#[derive(Default)]
struct Shard(Ranked<Table, SHARD>);

/// The index.
pub(crate) struct Index {
    shards: Box<[Shard]>,
    regions: Regions,
    seed: u64,
}

/// A locked shard, and the key that it was locked for.
pub(crate) struct Entry<'a> {
    table: RankedGuard<'a, Table>,
    regions: &'a Regions,
    key: Key,
    hash: u64,
    seed: u64,
}

impl Index {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            shards: (0..SHARDS).map(|_| Shard::default()).collect(),
            regions: Regions::new(),
            seed,
        }
    }

    pub(crate) const fn hash(&self, key: Key) -> u64 {
        key.hash(self.seed)
    }

    /// Locks the shard of a key.
    pub(crate) fn lock(&self, key: Key) -> Entry<'_> {
        self.lock_hashed(key, self.hash(key))
    }

    /// Locks the shard of a key whose hash is known.
    pub(crate) fn lock_hashed(&self, key: Key, hash: u64) -> Entry<'_> {
        Entry {
            table: self.shards[scale(hash >> 32, SHARDS)].0.lock(),
            regions: &self.regions,
            key,
            hash,
            seed: self.seed,
        }
    }

    /// The number of blocks in the index. It is counted a shard at a time, so it is approximate while others work.
    pub(crate) fn len(&self) -> usize {
        self.shards.iter().map(|s| s.0.lock().len()).sum()
    }

    /// Heap bytes.
    pub(crate) fn bytes(&self) -> usize {
        let tables: usize = self.shards.iter().map(|s| s.0.lock().bytes()).sum();
        tables + SHARDS * size_of::<Shard>() + self.regions.bytes()
    }

    /// The parts of `blocks` of a disk that may contain blocks. It may miss blocks that are put during the call.
    pub(crate) fn occupied(
        &self,
        disk: u64,
        blocks: Range<u64>,
    ) -> impl Iterator<Item = Range<u64>> {
        // A concurrent put has counted its block by the time its shard is unlocked.
        for shard in &self.shards {
            drop(shard.0.lock());
        }
        let end = blocks.end.min(MAX_BLOCK + 1);
        self.regions.occupied(disk, blocks.start..end, self.seed)
    }

    /// Do the counters of the regions match the tables?
    #[cfg(test)]
    pub(crate) fn regions_are_right(&self) -> bool {
        self.len() == self.regions.total()
    }

    /// The keys in the index that `wanted` accepts, a shard at a time.
    pub(crate) fn keys(&self, keys: &impl Keys, wanted: impl Fn(Key) -> bool) -> Vec<Key> {
        let mut found = Vec::new();
        self.for_each(keys, |key, _| {
            if wanted(key) {
                found.push(key);
            }
        });
        found
    }

    /// Calls `show` for each block with its location, a shard at a time. Hold no lock meanwhile.
    pub(crate) fn for_each(&self, keys: &impl Keys, mut show: impl FnMut(Key, Location)) {
        for shard in &self.shards {
            let table = shard.0.lock();
            for location in table.locations() {
                show(keys.key(location), location);
            }
        }
    }

    /// Removes every block that `wanted` accepts, a part of a shard at a time. `own` turns a location into the owner's value
    /// while the shard is locked; `removed` gets that value without locks. Blocks that are put meanwhile may be missed.
    pub(crate) fn sweep<T>(
        &self,
        keys: &impl Keys,
        wanted: impl Fn(Key, Location) -> bool,
        detach: impl Fn(Location) -> T,
        removed: impl Fn(T),
    ) {
        let mut found = Vec::new();
        let mut detached = Vec::new();
        for shard in &self.shards {
            let mut from = 0;
            let mut growths = None;
            let mut left = true;
            while left {
                {
                    let mut table = shard.0.lock();
                    if growths != Some(table.growths()) {
                        // Entries may have moved.
                        growths = Some(table.growths());
                        from = 0;
                    }
                    found.extend(
                        table
                            .locations_in(from..from + SWEEP_STEP)
                            .map(|location| (keys.key(location), location))
                            .filter(|(key, location)| wanted(*key, *location)),
                    );
                    for (key, location) in found.drain(..) {
                        let hash = key.hash(self.seed);
                        if let Some(entry_ref) = table.find(hash, |p| p == location) {
                            table.remove(hash, entry_ref);
                            self.regions.take(key, self.seed);
                            detached.push(detach(location));
                        }
                    }
                    from += SWEEP_STEP;
                    left = from < table.buckets();
                }
                detached.drain(..).for_each(&removed);
            }
        }
    }
}

impl Entry<'_> {
    pub(crate) const fn hash(&self) -> u64 {
        self.hash
    }

    /// The entry of the key.
    pub(crate) fn find(&self, keys: &impl Keys) -> Option<EntryRef> {
        self.table.find(self.hash, |p| keys.key(p) == self.key)
    }

    /// The entry of the key, if it names this location.
    pub(crate) fn find_at(&self, location: Location) -> Option<EntryRef> {
        self.table.find(self.hash, |p| p == location)
    }

    pub(crate) fn location(&self, entry_ref: EntryRef) -> Location {
        self.table.location(entry_ref)
    }

    pub(crate) fn used(&mut self, entry_ref: EntryRef) {
        self.table.used(entry_ref);
    }

    pub(crate) fn uses(&self, entry_ref: EntryRef) -> u8 {
        self.table.uses(entry_ref)
    }

    pub(crate) fn set_uses(&mut self, entry_ref: EntryRef, uses: u8) {
        self.table.set_uses(entry_ref, uses);
    }

    /// Points the entry at a block's new location.
    pub(crate) fn relocated(&mut self, entry_ref: EntryRef, location: Location) {
        self.table.relocated(entry_ref, location);
    }

    /// Sets the key's location. Returns the old location, which the caller now owns.
    pub(crate) fn set(&mut self, keys: &impl Keys, location: Location) -> Option<Location> {
        if let Some(entry_ref) = self.find(keys) {
            return Some(self.table.replace(entry_ref, location));
        }
        let seed = self.seed;
        self.table
            .insert(self.hash, location, |p| keys.key(p).hash(seed));
        self.regions.add(self.key, seed);
        None
    }

    /// Removes the entry. The caller now owns the location.
    pub(crate) fn remove(&mut self, entry_ref: EntryRef) -> Location {
        self.regions.take(self.key, self.seed);
        self.table.remove(self.hash, entry_ref)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The location's number is the key.
    struct Same;

    impl Keys for Same {
        fn key(&self, location: Location) -> Key {
            let n = u64::from(location.raw());
            Key::new(1, n * REGION / 4).unwrap()
        }
    }

    #[test]
    fn only_regions_with_blocks_are_searched() {
        let index = Index::new(7);
        let looked_at = |disk| index.occupied(disk, 5..1 << 22).collect::<Vec<_>>();
        for n in 0..8 {
            let location = Location::memory(n);
            index.lock(Same.key(location)).set(&Same, location);
        }
        // Four blocks to a region.
        let two = [5..REGION, REGION..2 * REGION];
        assert_eq!(looked_at(1), two);
        assert_eq!(looked_at(2), []);
        let second = |key: Key, _| key.block() >= REGION;
        index.sweep(&Same, second, |_| (), |()| ());
        assert_eq!(looked_at(1), two[..1]);
        for n in 0..4 {
            let location = Location::memory(n);
            let mut entry = index.lock(Same.key(location));
            let entry_ref = entry.find(&Same).unwrap();
            entry.remove(entry_ref);
        }
        assert_eq!(looked_at(1), []);
        assert!(index.regions_are_right());
    }

    /// A sweep goes through a shard in parts, and misses nothing of what moves meanwhile.
    #[test]
    fn a_sweep_finds_everything_while_others_put() {
        let index = Index::new(7);
        let mine = |n: u32| n.is_multiple_of(2);
        let put = |numbers: Range<u32>, wanted: bool| {
            for n in numbers.filter(|n| mine(*n) == wanted) {
                let location = Location::memory(n);
                index.lock(Same.key(location)).set(&Same, location);
            }
        };
        put(0..300_000, true);
        std::thread::scope(|scope| {
            // These make the tables grow.
            scope.spawn(|| put(0..600_000, false));
            index.sweep(&Same, |_, location| mine(location.raw()), |_| (), |()| ());
        });
        let left = index.keys(&Same, |key| (key.block() / (REGION / 4)).is_multiple_of(2));
        assert_eq!(left, []);
        assert_eq!(index.len(), 300_000);
    }
}
