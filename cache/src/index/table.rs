//! A hash table from a key's hash to the location of its block, 5 bytes an entry.
//!
//! A bucket is a cache line of [`ENTRIES`] locations and tags. A key belongs in its home bucket, or if that is full, in the
//! next one with a free entry. Every bucket passed on the way counts it, so that a search knows where to stop and a removal
//! leaves no tombstone. The table stores no keys: the caller compares them by location (the stores know the key of each slot).

use crate::block::Key;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};

/// Entries of a bucket: they fill a cache line, with their tags and the counter.
const ENTRIES: usize = 12;

/// The fill at which the table grows, and the factor of growth. The steps are small because the table counts as metadata of
/// blocks.
const FULL_PERCENT: usize = 88;
const GROW_PERCENT: usize = 112;

/// The highest value of the use counter in a tag.
const MAX_USES: u8 = 3;

/// The position of an entry in the table. Valid until the table changes.
#[derive(Clone, Copy)]
pub(crate) struct EntryRef {
    bucket: usize,
    entry: usize,
}

/// A cache line. A tag is 0 in a free entry, otherwise a 6-bit fingerprint (1..=63) and 2 bits of use.
#[repr(align(64))]
#[derive(Clone)]
struct Bucket {
    locations: [Location; ENTRIES],
    tags: [u8; ENTRIES],
    /// The number of entries that passed this bucket. It saturates at 255.
    passed: u8,
}

const EMPTY: Bucket = Bucket {
    locations: [Location::NONE; ENTRIES],
    tags: [0; ENTRIES],
    passed: 0,
};

/// The table.
#[derive(Default)]
pub(crate) struct Table {
    buckets: Vec<Bucket>,
    len: usize,
    /// The number of growths.
    growths: u64,
}

/// The tag of a hash, with no use counted.
const fn fingerprint(hash: u64) -> u8 {
    // At most 63, so the shifted value fits a byte.
    (((hash >> 40) % 63 + 1) << 2).to_le_bytes()[0]
}

impl Table {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Heap bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.buckets.capacity() * size_of::<Bucket>()
    }

    /// The number of buckets.
    pub(crate) fn buckets(&self) -> usize {
        self.buckets.len()
    }

    /// The number of growths. Between two growths entries stay in their buckets.
    pub(crate) fn growths(&self) -> u64 {
        self.growths
    }

    fn home(&self, hash: u64) -> usize {
        scale(hash, self.buckets.len())
    }

    /// The entry with this hash that `is` accepts.
    pub(crate) fn find(&self, hash: u64, is: impl Fn(Location) -> bool) -> Option<EntryRef> {
        let want = fingerprint(hash);
        let mut at = if self.buckets.is_empty() {
            return None;
        } else {
            self.home(hash)
        };
        for _ in 0..self.buckets.len() {
            let bucket = &self.buckets[at];
            for entry in 0..ENTRIES {
                if bucket.tags[entry] & !MAX_USES == want && is(bucket.locations[entry]) {
                    return Some(EntryRef { bucket: at, entry });
                }
            }
            if bucket.passed == 0 {
                return None;
            }
            at = (at + 1) % self.buckets.len();
        }
        None
    }

    pub(crate) fn location(&self, entry_ref: EntryRef) -> Location {
        self.buckets[entry_ref.bucket].locations[entry_ref.entry]
    }

    /// Changes an entry's location, and clears its use counter.
    pub(crate) fn replace(&mut self, entry_ref: EntryRef, location: Location) -> Location {
        let bucket = &mut self.buckets[entry_ref.bucket];
        bucket.tags[entry_ref.entry] &= !MAX_USES;
        std::mem::replace(&mut bucket.locations[entry_ref.entry], location)
    }

    /// Changes the location of an entry whose block has moved.
    pub(crate) fn relocated(&mut self, entry_ref: EntryRef, location: Location) {
        self.buckets[entry_ref.bucket].locations[entry_ref.entry] = location;
    }

    /// Counts a use, up to [`MAX_USES`].
    pub(crate) fn used(&mut self, entry_ref: EntryRef) {
        let tag = &mut self.buckets[entry_ref.bucket].tags[entry_ref.entry];
        if *tag & MAX_USES < MAX_USES {
            *tag += 1;
        }
    }

    pub(crate) fn uses(&self, entry_ref: EntryRef) -> u8 {
        self.buckets[entry_ref.bucket].tags[entry_ref.entry] & MAX_USES
    }

    pub(crate) fn set_uses(&mut self, entry_ref: EntryRef, uses: u8) {
        let tag = &mut self.buckets[entry_ref.bucket].tags[entry_ref.entry];
        *tag = *tag & !MAX_USES | uses.min(MAX_USES);
    }

    /// Adds an entry; the caller has checked that the key has none. `hash_of` returns the hash of an existing entry, for
    /// growth.
    pub(crate) fn insert(
        &mut self,
        hash: u64,
        location: Location,
        hash_of: impl Fn(Location) -> u64,
    ) {
        if (self.len + 1) * 100 > self.buckets.len() * ENTRIES * FULL_PERCENT {
            self.grow(hash_of);
        }
        self.add(hash, fingerprint(hash), location);
    }

    fn add(&mut self, hash: u64, tag: u8, location: Location) {
        let mut at = self.home(hash);
        loop {
            let count = self.buckets.len();
            let bucket = &mut self.buckets[at];
            if let Some(entry) = bucket.tags.iter().position(|t| *t == 0) {
                bucket.tags[entry] = tag;
                bucket.locations[entry] = location;
                self.len += 1;
                return;
            }
            bucket.passed = bucket.passed.saturating_add(1);
            at = (at + 1) % count;
        }
    }

    pub(crate) fn remove(&mut self, hash: u64, entry_ref: EntryRef) -> Location {
        let mut at = self.home(hash);
        while at != entry_ref.bucket {
            let passed = &mut self.buckets[at].passed;
            if *passed != u8::MAX {
                *passed -= 1;
            }
            at = (at + 1) % self.buckets.len();
        }
        let bucket = &mut self.buckets[entry_ref.bucket];
        bucket.tags[entry_ref.entry] = 0;
        self.len -= 1;
        std::mem::replace(&mut bucket.locations[entry_ref.entry], Location::NONE)
    }

    fn grow(&mut self, hash_of: impl Fn(Location) -> u64) {
        let old = std::mem::take(&mut self.buckets);
        let count = (old.len() * GROW_PERCENT / 100).max(old.len() + 1);
        let mut buckets = Vec::new();
        buckets.reserve_exact(count);
        buckets.resize(count, EMPTY);
        self.buckets = buckets;
        self.growths += 1;
        self.len = 0;
        for bucket in &old {
            for (location, tag) in bucket.locations.iter().zip(bucket.tags) {
                if tag != 0 {
                    self.add(hash_of(*location), tag, *location);
                }
            }
        }
    }

    /// Every location in the table.
    pub(crate) fn locations(&self) -> impl Iterator<Item = Location> {
        self.locations_in(0..self.buckets.len())
    }

    /// Every location in these buckets, as far as they exist.
    pub(crate) fn locations_in(&self, buckets: Range<usize>) -> impl Iterator<Item = Location> {
        let end = buckets.end.min(self.buckets.len());
        let buckets = self.buckets.get(buckets.start..end);
        buckets
            .unwrap_or_default()
            .iter()
            .flat_map(|b| b.locations.iter().zip(b.tags))
            .filter(|(_, tag)| *tag != 0)
            .map(|(location, _)| *location)
    }
}

/// Maps the low 32 bits of a hash evenly to `0..count`.
pub(crate) fn scale(hash: u64, count: usize) -> usize {
    let count = u64::try_from(count).unwrap_or(u64::MAX);
    let scaled = ((hash & u64::from(u32::MAX)).wrapping_mul(count)) >> 32;
    usize::try_from(scaled).unwrap_or(0)
}

// The location of a block.

/// A slot of a store, in 32 bits: memory or SSD, and which.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Location(u32);

const SSD: u32 = 1 << 31;

/// The most slots of a store: 8 TiB.
pub(crate) const MAX_SLOTS: u32 = SSD - 1;

/// A slot of the memory store or of the SSD store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SlotRef {
    Memory(u32),
    Ssd(u32),
}

impl Location {
    /// No slot of any store.
    pub(crate) const NONE: Self = Self(u32::MAX);

    pub(crate) const fn memory(slot: u32) -> Self {
        Self(slot)
    }

    pub(crate) const fn ssd(slot: u32) -> Self {
        Self(slot | SSD)
    }

    pub(crate) const fn slot(self) -> SlotRef {
        if self.0 & SSD == 0 {
            SlotRef::Memory(self.0)
        } else {
            SlotRef::Ssd(self.0 & !SSD)
        }
    }

    #[cfg(test)]
    pub(crate) const fn raw(self) -> u32 {
        self.0
    }
}

// Counters of blocks in the index for each region of a disk. A write of a large range only searches regions with blocks: its
// cost depends on cached blocks, not on its length.

/// Blocks of a region (256 MiB).
pub(crate) const REGION: u64 = 1 << 16;

/// The counters of all disks (64 KiB of memory). Regions that share one cost time, if one of them is empty.
const COUNTERS: usize = 1 << 14;

/// The counters. A block's counter changes only while the block's shard is locked.
pub(super) struct Regions(Box<[AtomicU32]>);

impl Regions {
    pub(super) fn new() -> Self {
        Self((0..COUNTERS).map(|_| AtomicU32::new(0)).collect())
    }

    fn counter(&self, disk: u64, region: u64, seed: u64) -> &AtomicU32 {
        // Neither disks nor regions have more than 24 bits.
        let hash = Key::from_raw(disk << 24 | region).hash(seed);
        &self.0[scale(hash, COUNTERS)]
    }

    fn of(&self, key: Key, seed: u64) -> &AtomicU32 {
        self.counter(key.disk(), key.block() / REGION, seed)
    }

    /// The index has one block more.
    pub(super) fn add(&self, key: Key, seed: u64) {
        self.of(key, seed).fetch_add(1, Ordering::Relaxed);
    }

    /// The index has one block less.
    pub(super) fn take(&self, key: Key, seed: u64) {
        self.of(key, seed).fetch_sub(1, Ordering::Relaxed);
    }

    /// Heap bytes.
    pub(super) fn bytes(&self) -> usize {
        size_of_val(&*self.0)
    }

    /// Blocks that are counted.
    #[cfg(test)]
    pub(super) fn total(&self) -> usize {
        let counts = self.0.iter().map(|c| c.load(Ordering::Relaxed));
        usize::try_from(counts.sum::<u32>()).unwrap()
    }

    /// The parts of `blocks` of a disk that lie in regions of which the index may have some.
    pub(super) fn occupied(
        &self,
        disk: u64,
        blocks: Range<u64>,
        seed: u64,
    ) -> impl Iterator<Item = Range<u64>> {
        let regions = blocks.start / REGION..blocks.end.div_ceil(REGION);
        let some =
            move |region: &u64| self.counter(disk, *region, seed).load(Ordering::Relaxed) > 0;
        regions.filter(some).map(move |region| {
            let start = region * REGION;
            start.max(blocks.start)..(start + REGION).min(blocks.end)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block::Key;
    use proptest::prelude::*;
    use std::collections::HashMap;

    fn hash(location: Location) -> u64 {
        Key::from_raw(u64::from(location.raw())).hash(7)
    }

    proptest! {
        #[test]
        fn behaves_like_a_map(ops in prop::collection::vec((0u32..400, 0u8..4), 1..3000)) {
            let mut table = Table::default();
            let mut model: HashMap<u32, u8> = HashMap::new();
            for (n, op) in ops {
                let location = Location::memory(n);
                let h = hash(location);
                let entry_ref = table.find(h, |p| p == location);
                prop_assert_eq!(entry_ref.is_some(), model.contains_key(&n));
                match (op, entry_ref) {
                    (0 | 1, None) => { table.insert(h, location, hash); model.insert(n, 0); }
                    (1, Some(entry_ref)) => { prop_assert_eq!(table.remove(h, entry_ref), location); model.remove(&n); }
                    (2, Some(entry_ref)) => {
                        table.used(entry_ref);
                        let uses = model.get_mut(&n).unwrap();
                        *uses = (*uses + 1).min(MAX_USES);
                        prop_assert_eq!(table.uses(entry_ref), *uses);
                    }
                    _ => {}
                }
                prop_assert_eq!(table.len(), model.len());
            }
            let mut left: Vec<_> = table.locations().map(Location::raw).collect();
            left.sort_unstable();
            let mut expected: Vec<_> = model.keys().copied().collect();
            expected.sort_unstable();
            prop_assert_eq!(left, expected);
        }
    }

    #[test]
    fn a_full_table_takes_under_eight_bytes_an_entry() {
        let mut table = Table::default();
        for n in 0..100_000 {
            let location = Location::memory(n);
            table.insert(hash(location), location, hash);
        }
        assert!(table.bytes() < 8 * table.len(), "{} bytes", table.bytes());
        assert!((0..100_000).all(|n| {
            let location = Location::memory(n);
            table.find(hash(location), |p| p == location).is_some()
        }));
    }

    #[test]
    fn a_bucket_is_a_cache_line() {
        assert_eq!(size_of::<Bucket>(), 64);
    }
}
