//! A hash table from a key's hash to the place of its block, 5 bytes an entry.
//!
//! Buckets of one cache line hold [`ENTRIES`] places and tags. A key belongs in its home bucket; when that is
//! full, in the next with room, and every bucket passed on the way counts it, so that a search knows where
//! to stop and a removal leaves no gravestone. The table stores no keys: whoever looks decides, by the place,
//! whether it is the one (the stores know the key of each slot).

use super::place::Place;
use std::ops::Range;

/// Places in a bucket: as many as fit a cache line with their tags and the counter.
const ENTRIES: usize = 12;

/// How full the table gets before it grows, and how much it grows then. The steps are small because the
/// table counts as metadata, a block.
const FULL_PERCENT: usize = 88;
const GROW_PERCENT: usize = 112;

/// The highest value of the use counter in a tag.
pub(crate) const MAX_USES: u8 = 3;

/// Where in the table an entry is. Valid until the table changes.
#[derive(Clone, Copy)]
pub(crate) struct Spot {
    bucket: usize,
    entry: usize,
}

/// A cache line. A tag is 0 in a free entry, otherwise a 6-bit fingerprint (1..=63) and 2 bits of use.
#[repr(align(64))]
#[derive(Clone)]
struct Bucket {
    places: [Place; ENTRIES],
    tags: [u8; ENTRIES],
    /// Entries that wanted this bucket and live beyond it. 255 stays 255.
    passed: u8,
}

const EMPTY: Bucket = Bucket {
    places: [Place::NONE; ENTRIES],
    tags: [0; ENTRIES],
    passed: 0,
};

/// The table.
#[derive(Default)]
pub(crate) struct Table {
    buckets: Vec<Bucket>,
    len: usize,
    /// How often it has grown.
    growths: u64,
}

/// The tag of a hash, with no use counted.
const fn fingerprint(hash: u64) -> u8 {
    // At most 63, so the shift stays in a byte.
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

    /// How many buckets there are.
    pub(crate) fn buckets(&self) -> usize {
        self.buckets.len()
    }

    /// How often it has grown. While it does not, entries stay in their buckets.
    pub(crate) fn growths(&self) -> u64 {
        self.growths
    }

    fn home(&self, hash: u64) -> usize {
        scale(hash, self.buckets.len())
    }

    /// The entry with this hash that `is` accepts.
    pub(crate) fn find(&self, hash: u64, is: impl Fn(Place) -> bool) -> Option<Spot> {
        let want = fingerprint(hash);
        let mut at = if self.buckets.is_empty() {
            return None;
        } else {
            self.home(hash)
        };
        for _ in 0..self.buckets.len() {
            let bucket = &self.buckets[at];
            for entry in 0..ENTRIES {
                if bucket.tags[entry] & !MAX_USES == want && is(bucket.places[entry]) {
                    return Some(Spot { bucket: at, entry });
                }
            }
            if bucket.passed == 0 {
                return None;
            }
            at = (at + 1) % self.buckets.len();
        }
        None
    }

    pub(crate) fn place(&self, spot: Spot) -> Place {
        self.buckets[spot.bucket].places[spot.entry]
    }

    /// Points an entry elsewhere, with its use forgotten.
    pub(crate) fn replace(&mut self, spot: Spot, place: Place) -> Place {
        let bucket = &mut self.buckets[spot.bucket];
        bucket.tags[spot.entry] &= !MAX_USES;
        std::mem::replace(&mut bucket.places[spot.entry], place)
    }

    /// Points an entry elsewhere: the same block has moved.
    pub(crate) fn moved(&mut self, spot: Spot, place: Place) {
        self.buckets[spot.bucket].places[spot.entry] = place;
    }

    /// Counts a use, up to [`MAX_USES`].
    pub(crate) fn used(&mut self, spot: Spot) {
        let tag = &mut self.buckets[spot.bucket].tags[spot.entry];
        if *tag & MAX_USES < MAX_USES {
            *tag += 1;
        }
    }

    pub(crate) fn uses(&self, spot: Spot) -> u8 {
        self.buckets[spot.bucket].tags[spot.entry] & MAX_USES
    }

    pub(crate) fn set_uses(&mut self, spot: Spot, uses: u8) {
        let tag = &mut self.buckets[spot.bucket].tags[spot.entry];
        *tag = *tag & !MAX_USES | uses.min(MAX_USES);
    }

    /// Adds an entry; the caller has looked that there is none for the key. `hash_of` tells the hash of
    /// an entry that is in the table, should it have to grow.
    pub(crate) fn insert(&mut self, hash: u64, place: Place, hash_of: impl Fn(Place) -> u64) {
        if (self.len + 1) * 100 > self.buckets.len() * ENTRIES * FULL_PERCENT {
            self.grow(hash_of);
        }
        self.add(hash, fingerprint(hash), place);
    }

    fn add(&mut self, hash: u64, tag: u8, place: Place) {
        let mut at = self.home(hash);
        loop {
            let count = self.buckets.len();
            let bucket = &mut self.buckets[at];
            if let Some(entry) = bucket.tags.iter().position(|t| *t == 0) {
                bucket.tags[entry] = tag;
                bucket.places[entry] = place;
                self.len += 1;
                return;
            }
            bucket.passed = bucket.passed.saturating_add(1);
            at = (at + 1) % count;
        }
    }

    pub(crate) fn remove(&mut self, hash: u64, spot: Spot) -> Place {
        let mut at = self.home(hash);
        while at != spot.bucket {
            let passed = &mut self.buckets[at].passed;
            if *passed != u8::MAX {
                *passed -= 1;
            }
            at = (at + 1) % self.buckets.len();
        }
        let bucket = &mut self.buckets[spot.bucket];
        bucket.tags[spot.entry] = 0;
        self.len -= 1;
        std::mem::replace(&mut bucket.places[spot.entry], Place::NONE)
    }

    fn grow(&mut self, hash_of: impl Fn(Place) -> u64) {
        let old = std::mem::take(&mut self.buckets);
        let count = (old.len() * GROW_PERCENT / 100).max(old.len() + 1);
        let mut buckets = Vec::new();
        buckets.reserve_exact(count);
        buckets.resize(count, EMPTY);
        self.buckets = buckets;
        self.growths += 1;
        self.len = 0;
        for bucket in &old {
            for (place, tag) in bucket.places.iter().zip(bucket.tags) {
                if tag != 0 {
                    self.add(hash_of(*place), tag, *place);
                }
            }
        }
    }

    /// Every place in the table.
    pub(crate) fn places(&self) -> impl Iterator<Item = Place> {
        self.places_in(0..self.buckets.len())
    }

    /// Every place in these buckets, as far as they exist.
    pub(crate) fn places_in(&self, buckets: Range<usize>) -> impl Iterator<Item = Place> {
        let end = buckets.end.min(self.buckets.len());
        let buckets = self.buckets.get(buckets.start..end);
        buckets
            .unwrap_or_default()
            .iter()
            .flat_map(|b| b.places.iter().zip(b.tags))
            .filter(|(_, tag)| *tag != 0)
            .map(|(place, _)| *place)
    }
}

/// Maps the low 32 bits of a hash evenly to `0..count`.
pub(crate) fn scale(hash: u64, count: usize) -> usize {
    let count = u64::try_from(count).unwrap_or(u64::MAX);
    let scaled = ((hash & u64::from(u32::MAX)).wrapping_mul(count)) >> 32;
    usize::try_from(scaled).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block::Key;
    use proptest::prelude::*;
    use std::collections::HashMap;

    fn hash(place: Place) -> u64 {
        Key::from_raw(u64::from(place.raw())).hash(7)
    }

    proptest! {
        #[test]
        fn behaves_like_a_map(ops in prop::collection::vec((0u32..400, 0u8..4), 1..3000)) {
            let mut table = Table::default();
            let mut model: HashMap<u32, u8> = HashMap::new();
            for (n, op) in ops {
                let place = Place::memory(n);
                let h = hash(place);
                let spot = table.find(h, |p| p == place);
                prop_assert_eq!(spot.is_some(), model.contains_key(&n));
                match (op, spot) {
                    (0 | 1, None) => { table.insert(h, place, hash); model.insert(n, 0); }
                    (1, Some(spot)) => { prop_assert_eq!(table.remove(h, spot), place); model.remove(&n); }
                    (2, Some(spot)) => {
                        table.used(spot);
                        let uses = model.get_mut(&n).unwrap();
                        *uses = (*uses + 1).min(MAX_USES);
                        prop_assert_eq!(table.uses(spot), *uses);
                    }
                    _ => {}
                }
                prop_assert_eq!(table.len(), model.len());
            }
            let mut left: Vec<_> = table.places().map(Place::raw).collect();
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
            let place = Place::memory(n);
            table.insert(hash(place), place, hash);
        }
        assert!(table.bytes() < 8 * table.len(), "{} bytes", table.bytes());
        assert!((0..100_000).all(|n| {
            let place = Place::memory(n);
            table.find(hash(place), |p| p == place).is_some()
        }));
    }

    #[test]
    fn a_bucket_is_a_cache_line() {
        assert_eq!(size_of::<Bucket>(), 64);
    }
}
