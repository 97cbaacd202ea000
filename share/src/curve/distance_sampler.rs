//! Samples reuse distances: how many blocks were accessed since a block was.

use super::reuse_times::{ReuseTimes, WHOLE};
use super::sampler::Sampler;

/// Entries of a set: a block is remembered in one of these places.
const WAYS: usize = 8;

/// A set, on a cache line of its own.
#[repr(align(64))]
#[derive(Clone, Copy, Debug, Default)]
struct Set([Entry; WAYS]);

/// A block that is remembered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Entry {
    /// Bits of the hash that tell the block; 0 in an entry of none. The upper half is as of [`Sampler::is_sampled`].
    tag: u32,
    /// The clock of the last access, modulo 2^32.
    time: u32,
}

/// Samples the accesses of one cache, and counts reuse distances in blocks (SHARDS, section 3). The blocks are remembered
/// in the order of their last accesses.
#[derive(Clone, Debug)]
pub struct DistanceSampler {
    sets: Box<[Set]>,
    order: Recency,
    uses: Uses,
    shift: u32,
    clock: u64,
    evicted: u64,
    counted: ReuseTimes,
}

impl DistanceSampler {
    /// A sampler of one block in 2^`shift`, at most 2^31, that remembers eight blocks in each of `sets` sets, 144 bytes
    /// a set. `sets` is rounded up to a power of two, and at most 2,048.
    #[must_use]
    pub fn with_sets(shift: u32, sets: usize) -> Self {
        let sets = sets.next_power_of_two().min(1 << 11);
        Self {
            sets: vec![Set::default(); sets].into_boxed_slice(),
            order: Recency::new(sets * WAYS),
            uses: Uses::new(sets * WAYS),
            shift: shift.min(31),
            clock: 0,
            evicted: 0,
            counted: ReuseTimes::default(),
        }
    }

    /// One access to a block that is sampled ([`Sampler::is_sampled`]); `hash` tells the block, and has to be as good as
    /// random.
    pub fn access(&mut self, hash: u64) {
        self.clock += 1 << self.shift;
        let known = self.find(hash);
        let distance = known.map(|entry| self.distance(entry));
        self.counted.count(distance, 1 << self.shift);
        let entry = known.unwrap_or_else(|| self.remember(hash));
        self.touch(entry);
        let share = self.uses.add(entry);
        if let Some(distance) = distance {
            self.counted.count_share(distance, 1 << self.shift, share);
        }
    }

    /// A block that is sampled is put into an exclusive cache, where it stays until it is taken out.
    pub fn put(&mut self, hash: u64) {
        self.clock += 1 << self.shift;
        let known = self.find(hash);
        let entry = known.unwrap_or_else(|| self.remember(hash));
        self.touch(entry);
    }

    /// A block that is sampled is looked for in an exclusive cache; if it is there, it is taken out. What is counted is how
    /// many were put since, and are still there.
    pub fn take(&mut self, hash: u64) {
        let known = self.find(hash);
        let distance = known.map(|entry| self.distance(entry));
        self.counted.count(distance, 1 << self.shift);
        if let Some(entry) = known {
            self.forget(entry);
        }
    }

    /// How many blocks a cache must hold to still have this one. Each sampled block that is newer stands for 2^shift
    /// blocks. This one lies half way among the 2^shift that it stands for.
    fn distance(&self, entry: usize) -> u64 {
        self.blocks(self.order.newer(entry)) + (1 << self.shift >> 1)
    }

    /// How many blocks `sampled` sampled blocks stand for.
    fn blocks(&self, sampled: usize) -> u64 {
        u64::try_from(sampled).unwrap_or(u64::MAX) << self.shift
    }

    /// Half of the bits say whether the block is sampled at all rates up to one in 2^16. Those that say the set are others.
    fn tag(hash: u64) -> u32 {
        let [_, _, low, high, _, _, a, b] = hash.to_le_bytes();
        u32::from_le_bytes([a, b.max(1), low, high])
    }

    fn set(&self, hash: u64) -> usize {
        usize::try_from(hash >> 32).unwrap_or_default() & (self.sets.len() - 1)
    }

    fn find(&self, hash: u64) -> Option<usize> {
        let (set, tag) = (self.set(hash), Self::tag(hash));
        let ways = self.sets.get(set)?.0.iter();
        let way = ways.clone().position(|entry| entry.tag == tag)?;
        Some(set * WAYS + way)
    }

    fn entry_mut(&mut self, entry: usize) -> Option<&mut Entry> {
        self.sets.get_mut(entry / WAYS)?.0.get_mut(entry % WAYS)
    }

    fn now(&self) -> u32 {
        u32::try_from(self.clock & u64::from(u32::MAX)).unwrap_or_default()
    }

    fn touch(&mut self, entry: usize) {
        let now = self.now();
        if let Some(entry) = self.entry_mut(entry) {
            entry.time = now;
        }
        self.order.accessed(entry);
    }

    fn forget(&mut self, entry: usize) {
        if let Some(entry) = self.entry_mut(entry) {
            *entry = Entry::default();
        }
        self.order.remove(entry);
        self.uses.forget(entry);
    }

    /// An entry for a block that is not known, instead of the oldest of its set.
    fn remember(&mut self, hash: u64) -> usize {
        let set = self.set(hash);
        let ways = self.sets.get(set).map(|set| set.0).unwrap_or_default();
        let free = ways.iter().position(|entry| entry.tag == 0);
        let entry = free.map_or_else(|| self.oldest_of(set), |way| set * WAYS + way);
        if free.is_none() {
            self.evicted += 1 << self.shift;
            self.forget(entry);
        }
        if let Some(entry) = self.entry_mut(entry) {
            entry.tag = Self::tag(hash);
        }
        entry
    }

    fn oldest_of(&self, set: usize) -> usize {
        let ways = set * WAYS..(set + 1) * WAYS;
        let oldest = ways.max_by_key(|entry| self.order.newer(*entry));
        oldest.unwrap_or_default()
    }

    /// The time: accesses so far (of an exclusive cache puts), as far as they are sampled, each for as many as it stands
    /// for.
    #[must_use]
    pub const fn clock(&self) -> u64 {
        self.clock
    }

    /// After how many accesses a block that is not used meanwhile leaves a cache of `size` blocks: how long ago the block
    /// was used that `size` blocks are newer than. `u64::MAX` when there are fewer.
    #[must_use]
    pub fn eviction_time(&self, size: u64) -> u64 {
        let newer = usize::try_from(size >> self.shift).unwrap_or(usize::MAX);
        let entry = self.order.after(newer);
        let entry = entry.and_then(|entry| self.sets.get(entry / WAYS)?.0.get(entry % WAYS));
        entry.map_or(u64::MAX, |entry| self.age(entry))
    }

    fn age(&self, entry: &Entry) -> u64 {
        self.now().wrapping_sub(entry.time).into()
    }

    /// Sampled blocks that were accessed within the last `accesses` accesses.
    #[must_use]
    pub fn used_within(&self, accesses: u64) -> u64 {
        let entries = self.sets.iter().flat_map(|set| set.0.iter());
        let used = entries.filter(|entry| entry.tag != 0 && self.age(entry) < accesses);
        used.map(|_| 1).sum()
    }

    /// Heap bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        size_of_val(&*self.sets) + self.uses.bytes() + self.order.bytes()
    }

    /// Samples one block in 2^`shift` from now on, at most 2^31. Blocks that are not sampled any more are forgotten. When
    /// more are to be sampled, all are: of those that are new it is not known when they were accessed.
    pub fn set_shift(&mut self, shift: u32) {
        let shift = shift.min(31);
        let all = shift < self.shift;
        for entry in 0..self.sets.len() * WAYS {
            let tag = self.entry_mut(entry).map_or(0, |entry| entry.tag);
            let low = u64::from(tag) & 0xFFFF_0000;
            if tag != 0 && (all || !Sampler::is_sampled(low, shift)) {
                self.forget(entry);
            }
        }
        self.shift = shift;
    }

    /// One block in 2^this is sampled.
    #[must_use]
    pub const fn shift(&self) -> u32 {
        self.shift
    }

    /// Sampled blocks that are remembered.
    #[must_use]
    pub const fn live(&self) -> usize {
        self.order.len()
    }

    /// The blocks that the remembered ones stand for: an earlier access is known if no more were accessed since.
    #[must_use]
    pub fn reach(&self) -> u64 {
        self.blocks(self.live())
    }

    /// How far back an earlier access to a block would be known, in blocks, for each set that is full: as many as are newer
    /// than the oldest of its entries. In the other sets no entry was evicted.
    pub fn lookbacks(&self) -> impl Iterator<Item = u64> {
        let sets = self.sets.iter().enumerate();
        let full = sets.filter(|(_, set)| set.0.iter().all(|entry| entry.tag != 0));
        full.map(|(set, _)| self.distance(self.oldest_of(set)))
    }

    /// What was counted, from the beginning on: distances in blocks in the place of times. All accesses are the caller's to
    /// count.
    #[must_use]
    pub const fn counted(&self) -> &ReuseTimes {
        &self.counted
    }

    /// Accesses, as far as they are sampled, that evicted an entry.
    #[must_use]
    pub const fn evicted(&self) -> u64 {
        self.evicted
    }
}

// How many blocks were accessed since a block was: an order of the entries of a table, by their last access.

/// The order of the entries of a table: 8 bytes each.
#[derive(Clone, Debug)]
pub(super) struct Recency {
    /// The position of each entry; 0 for one that is not in the order.
    positions: Box<[u16]>,
    /// A Fenwick tree over positions: how many entries have them.
    counts: Box<[u16]>,
    /// The last position that was given.
    last: u16,
    len: u16,
}

impl Recency {
    /// An order of entries 0 to `entries`, a power of two up to 16,384; rounded to that.
    pub(super) fn new(entries: usize) -> Self {
        let entries = entries.next_power_of_two().min(1 << 14);
        Self {
            positions: vec![0; entries].into_boxed_slice(),
            // Twice as many positions as entries: they are given anew each time that they are used up.
            counts: vec![0; 2 * entries + 1].into_boxed_slice(),
            last: 0,
            len: 0,
        }
    }

    /// Entries in the order.
    pub(super) const fn len(&self) -> usize {
        self.len as usize
    }

    /// Heap bytes.
    pub(super) fn bytes(&self) -> usize {
        size_of_val(&*self.positions) + size_of_val(&*self.counts)
    }

    /// Entries that were moved to the front after this one; all of them if it is not in the order.
    pub(super) fn newer(&self, entry: usize) -> usize {
        self.len() - usize::from(self.sum(self.position(entry)))
    }

    /// The entry that `newer` others are newer than.
    pub(super) fn after(&self, newer: usize) -> Option<usize> {
        let older = self.len().checked_sub(newer).filter(|older| *older > 0)?;
        // The first position up to which there are `older` entries: down the tree.
        let (mut at, mut left) = (0, older);
        let mut step = self.counts.len().next_power_of_two() / 2;
        while step > 0 {
            let count = self.counts.get(at + step).copied().map(usize::from);
            if let Some(count) = count.filter(|count| *count < left) {
                (at, left) = (at + step, left - count);
            }
            step /= 2;
        }
        let of = |position: &u16| *position > 0 && usize::from(*position) == at + 1;
        self.positions.iter().position(of)
    }

    /// The entry was accessed now.
    pub(super) fn accessed(&mut self, entry: usize) {
        self.remove(entry);
        if usize::from(self.last) + 1 == self.counts.len() {
            self.renumber();
        }
        self.last += 1;
        self.len += 1;
        if let Some(position) = self.positions.get_mut(entry) {
            *position = self.last;
        }
        self.add(self.last, 1);
    }

    /// The entry is of no block any more.
    pub(super) fn remove(&mut self, entry: usize) {
        let position = self.position(entry);
        if position > 0 {
            self.add(position, u16::MAX);
            self.len -= 1;
            if let Some(position) = self.positions.get_mut(entry) {
                *position = 0;
            }
        }
    }

    fn position(&self, entry: usize) -> u16 {
        self.positions.get(entry).copied().unwrap_or(0)
    }

    /// Entries up to a position.
    fn sum(&self, position: u16) -> u16 {
        let (mut at, mut sum) = (position, 0_u16);
        while at > 0 {
            let count = self.counts.get(usize::from(at)).copied();
            sum = sum.wrapping_add(count.unwrap_or(0));
            at &= at - 1;
        }
        sum
    }

    /// Counts one more at a position, or, with `u16::MAX`, one less.
    fn add(&mut self, position: u16, one: u16) {
        let mut at = usize::from(position);
        while let Some(count) = self.counts.get_mut(at) {
            *count = count.wrapping_add(one);
            at += at & at.wrapping_neg();
        }
    }

    /// Gives the entries the positions from 1 on, in the same order.
    fn renumber(&mut self) {
        let mut entries = vec![0_u16; self.counts.len()];
        for (entry, position) in (1..).zip(self.positions.iter()) {
            if let Some(at) = entries.get_mut(usize::from(*position)) {
                *at = entry;
            }
        }
        self.counts.fill(0);
        self.last = 0;
        let in_order = entries.iter().skip(1).filter(|entry| **entry > 0);
        for entry in in_order.map(|entry| usize::from(*entry) - 1) {
            self.last += 1;
            if let Some(position) = self.positions.get_mut(entry) {
                *position = self.last;
            }
        }
        for position in 1..=self.last {
            self.add(position, 1);
        }
    }
}

// How often the blocks that are remembered were accessed.

/// Accesses of an entry, on average, after which all counts are halved: what was used much and is no more does not count for
/// ever.
const AVERAGE: u64 = 64;

/// The accesses of each entry since its block is remembered.
#[derive(Clone, Debug)]
pub(super) struct Uses {
    each: Box<[u32]>,
    all: u64,
}

impl Uses {
    pub(super) fn new(entries: usize) -> Self {
        Self {
            each: vec![0; entries].into_boxed_slice(),
            all: 0,
        }
    }

    /// Counts an access to an entry; the part of all accesses that are its, in [`WHOLE`]ths.
    pub(super) fn add(&mut self, entry: usize) -> u64 {
        let most = u64::try_from(self.each.len()).unwrap_or(u64::MAX);
        if self.all >= most.saturating_mul(AVERAGE) {
            self.each.iter_mut().for_each(|uses| *uses /= 2);
            self.all = self.each.iter().copied().map(u64::from).sum();
        }
        let Some(uses) = self.each.get_mut(entry) else {
            return 0;
        };
        *uses = uses.saturating_add(1);
        self.all += 1;
        u64::from(*uses) * WHOLE / self.all
    }

    pub(super) fn forget(&mut self, entry: usize) {
        if let Some(uses) = self.each.get_mut(entry) {
            self.all = self.all.saturating_sub(u64::from(*uses));
            *uses = 0;
        }
    }

    /// Heap bytes.
    pub(super) const fn bytes(&self) -> usize {
        size_of_val(&*self.each)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Blocks of which each has a set of its own.
    fn block(n: u64) -> u64 {
        n << 32 | n << 48 | 1 << 56
    }

    fn distances(sampler: &DistanceSampler) -> Vec<(usize, u64)> {
        let times = sampler.counted().times.iter().enumerate();
        let found = times.filter(|(_, count)| **count > 0);
        found.map(|(bucket, count)| (bucket, *count)).collect()
    }

    #[test]
    fn a_distance_is_the_blocks_since() {
        let mut sampler = DistanceSampler::with_sets(0, 64);
        for n in [1, 2, 3, 2, 2, 1] {
            sampler.access(block(n));
        }
        assert_eq!(distances(&sampler), [(0, 1), (1, 1), (2, 1)]);
        assert_eq!(sampler.counted().cold, 3);
        assert_eq!(
            (sampler.live(), sampler.reach(), sampler.clock()),
            (3, 3, 6)
        );
    }

    #[test]
    fn what_is_taken_out_counts_no_more() {
        let mut sampler = DistanceSampler::with_sets(0, 64);
        (1..=4).for_each(|n| sampler.put(block(n)));
        for n in [3, 1, 3] {
            sampler.take(block(n));
        }
        // Of block 3 one was put later; of block 1 two that are still there.
        assert_eq!(distances(&sampler), [(1, 1), (2, 1)]);
        assert_eq!((sampler.counted().cold, sampler.live()), (1, 2));
    }

    #[test]
    fn at_another_rate_what_is_sampled_no_more_is_forgotten() {
        let mut sampler = DistanceSampler::with_sets(0, 64);
        let low = [0, 1 << 31, 1 << 20];
        (1..)
            .zip(low)
            .for_each(|(n, low)| sampler.access(block(n) | low));
        sampler.set_shift(1);
        assert_eq!((sampler.live(), sampler.reach()), (2, 4));
        sampler.access(block(1));
        assert_eq!(distances(&sampler), [(3, 2)], "one newer block, of two");
        sampler.set_shift(0);
        assert_eq!(sampler.live(), 0);
    }

    #[test]
    fn the_oldest_of_a_set_is_evicted_and_known_to_be() {
        let mut sampler = DistanceSampler::with_sets(0, 1);
        for n in 1..=9 {
            sampler.access(block(n));
            (0..16).for_each(|_| sampler.access(block(n)));
        }
        assert_eq!((sampler.live(), sampler.evicted()), (8, 1));
        assert_eq!(sampler.lookbacks().collect::<Vec<_>>(), [7]);
        assert_eq!(sampler.eviction_time(8), u64::MAX);
        // The last block was accessed just now, the one before for the last time 17 accesses ago.
        assert_eq!(
            (sampler.eviction_time(0), sampler.eviction_time(1)),
            (0, 17)
        );
        assert_eq!((sampler.used_within(17), sampler.used_within(18)), (1, 2));
    }

    proptest! {
        #[test]
        fn the_order_is_that_of_a_list(steps in prop::collection::vec((0..8_usize, any::<bool>()), 0..200)) {
            let mut order = Recency::new(8);
            let mut list: Vec<usize> = Vec::new();
            for (entry, accessed) in steps {
                list.retain(|known| *known != entry);
                if accessed {
                    list.push(entry);
                    order.accessed(entry);
                } else {
                    order.remove(entry);
                }
                prop_assert_eq!(order.len(), list.len());
                for (newer, entry) in list.iter().rev().enumerate() {
                    prop_assert_eq!(order.newer(*entry), newer);
                    prop_assert_eq!(order.after(newer), Some(*entry));
                }
                prop_assert_eq!(order.after(list.len()), None);
            }
        }
    }

    #[test]
    fn an_entry_that_is_none_does_no_harm() {
        let mut order = Recency::new(4);
        order.remove(99);
        assert_eq!((order.newer(99), order.len()), (0, 0));
    }

    #[test]
    fn the_share_of_an_entry_is_its_part_of_all_accesses() {
        let mut uses = Uses::new(4);
        assert_eq!(uses.add(0), WHOLE);
        assert_eq!(uses.add(1), WHOLE / 2);
        assert_eq!(uses.add(1), WHOLE * 2 / 3);
        uses.forget(1);
        assert_eq!((uses.add(0), uses.add(9)), (WHOLE, 0));
    }

    #[test]
    fn what_is_used_no_more_fades() {
        let mut uses = Uses::new(4);
        (0..200).for_each(|_| _ = uses.add(0));
        // Counts are halved whenever there are 64 of an entry on average.
        (0..2000).for_each(|_| _ = uses.add(1));
        assert!(uses.add(0) < WHOLE / 50);
        assert!(uses.all <= 4 * AVERAGE);
    }
}
