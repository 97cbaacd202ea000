//! Which accesses are sampled, and what is remembered of them: the same as the probes do in the kernel
//! (`kernel/src/bpf/curves.h`).

use super::reuse_times::ReuseTimes;

/// Blocks that a sampler remembers: 16 KiB.
pub const ENTRIES: usize = 2048;
/// Entries of a set: a block is remembered in one of these places.
const WAYS: usize = 8;
/// Sets of entries, likewise.
pub const SETS: usize = ENTRIES / WAYS;
/// Bits of an entry that tell the time of the last access; the others tell the block.
const TIME: u32 = 40;
const MASK: u64 = (1 << TIME) - 1;

/// Samples the accesses of one tenant.
#[derive(Clone, Debug)]
pub struct Sampler {
    entries: Box<[u64]>,
    shift: u32,
    clock: u64,
    evicted: u64,
    counted: ReuseTimes,
}

impl Sampler {
    /// A sampler of one block in 2^`shift`, at most 2^31.
    #[must_use]
    pub fn new(shift: u32) -> Self {
        Self {
            entries: vec![0; ENTRIES].into_boxed_slice(),
            shift: shift.min(31),
            clock: 0,
            evicted: 0,
            counted: ReuseTimes::default(),
        }
    }

    /// Is a block of this hash sampled when one in 2^`shift` is, at most 2^31?
    #[must_use]
    pub fn is_sampled(hash: u64, shift: u32) -> bool {
        hash & u64::from(u32::MAX) <= u64::from(u32::MAX >> shift.min(31))
    }

    /// One access; `hash` tells the block, and has to be as good as random.
    pub fn access(&mut self, hash: u64) {
        self.counted.accesses += 1;
        if !Self::is_sampled(hash, self.shift) {
            return;
        }
        let step = 1 << self.shift;
        self.clock += step;
        let now = self.clock & MASK;
        let (tag, ways) = Self::set_of(&mut self.entries, hash);
        if let Some(entry) = ways.iter_mut().find(|entry| **entry >> TIME == tag) {
            let age = now.wrapping_sub(*entry) & MASK;
            self.counted.count(Some(age), step);
            *entry = tag << TIME | now;
            return;
        }
        self.counted.count(None, step);
        self.remember(hash, now);
    }

    /// The tag of a block, and the set that it is in.
    fn set_of(entries: &mut [u64], hash: u64) -> (u64, &mut [u64]) {
        // Bits of the hash that do not say whether it is sampled: from 32 on for the set, 24 for the block.
        let tag = (hash >> TIME).max(1);
        let set = usize::try_from(hash >> 32).unwrap_or_default() & (SETS - 1);
        (tag, &mut entries[set * WAYS..(set + 1) * WAYS])
    }

    /// Remembers a block that is not known, instead of the oldest of its set.
    fn remember(&mut self, hash: u64, now: u64) {
        let (tag, ways) = Self::set_of(&mut self.entries, hash);
        let age = |entry: u64| now.wrapping_sub(entry) & MASK;
        let oldest = ways
            .iter_mut()
            .max_by_key(|entry| if **entry == 0 { u64::MAX } else { age(**entry) });
        if let Some(entry) = oldest {
            self.evicted += if *entry == 0 { 0 } else { 1 << self.shift };
            *entry = tag << TIME | now;
        }
    }

    /// Samples one block in 2^`shift` from now on, at most 2^31.
    pub fn set_shift(&mut self, shift: u32) {
        self.shift = shift.min(31);
    }

    /// One block in 2^this is sampled.
    #[must_use]
    pub const fn shift(&self) -> u32 {
        self.shift
    }

    /// Blocks that were accessed within the last `accesses` accesses, of those that are remembered.
    #[must_use]
    pub fn live(&self, accesses: u64) -> u64 {
        let age = |entry: u64| self.clock.wrapping_sub(entry) & MASK;
        let live = self
            .entries
            .iter()
            .filter(|entry| **entry != 0 && age(**entry) < accesses);
        live.map(|_| 1).sum()
    }

    /// How far back an earlier access to a block would be known, in accesses, for each set that is full: since the oldest
    /// of its entries. In the other sets no entry was evicted.
    pub fn lookbacks(&self) -> impl Iterator<Item = u64> {
        let sets = self.entries.chunks_exact(WAYS);
        let full = sets.filter(|set| set.iter().all(|entry| *entry != 0));
        full.filter_map(move |set| {
            let ages = set
                .iter()
                .map(|entry| self.clock.wrapping_sub(*entry) & MASK);
            ages.max()
        })
    }

    /// What was counted, from the beginning on.
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
