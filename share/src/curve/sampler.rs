//! Which accesses are sampled, and what is remembered of them: the same as the probes do in the kernel
//! (`kernel/src/bpf/curves.h`).

use std::ops::Range;

use super::pages::{PAGES, PagesAccessed, touched};
use super::reuse_times::ReuseTimes;

/// Blocks that a sampler remembers: 24 KiB with their pages.
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
    /// Of each entry.
    pages: Box<[PagesAccessed]>,
    /// The block of the last access to pages, by its hash.
    last: Option<u64>,
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
            pages: vec![PagesAccessed::default(); ENTRIES].into_boxed_slice(),
            last: None,
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

    /// One access to all pages of a block; `hash` tells the block, and has to be as good as random.
    pub fn access(&mut self, hash: u64) {
        self.last = None;
        self.access_pages(hash, 0, PAGES);
    }

    /// One access to `count` pages of a block, from its page `first` on. Consecutive ones to one block count as one, as in
    /// the probes.
    pub fn access_pages(&mut self, hash: u64, first: u32, count: u32) {
        let same = self.last.replace(hash) == Some(hash);
        self.counted.accesses += u64::from(!same);
        if !Self::is_sampled(hash, self.shift) {
            return;
        }
        let entry = if same {
            self.find(hash)
        } else {
            Some(self.count(hash))
        };
        let pages = entry.and_then(|entry| self.pages.get_mut(entry));
        if let Some(pages) = pages {
            pages.access(first, count);
        }
    }

    /// Counts an access to a block that is sampled. Returns its entry, which may be new.
    fn count(&mut self, hash: u64) -> usize {
        let step = 1 << self.shift;
        self.clock += step;
        let now = self.clock & MASK;
        let known = self.find(hash);
        let age = known.map(|entry| now.wrapping_sub(self.entries[entry]) & MASK);
        self.counted.count(age, step);
        let entry = known.unwrap_or_else(|| self.make_room(hash, now));
        self.entries[entry] = Self::tag(hash) << TIME | now;
        entry
    }

    /// Bits of the hash that do not say whether it is sampled: from 32 on for the set, 24 for the block.
    fn tag(hash: u64) -> u64 {
        (hash >> TIME).max(1)
    }

    fn set(hash: u64) -> Range<usize> {
        let set = usize::try_from(hash >> 32).unwrap_or_default() & (SETS - 1);
        set * WAYS..(set + 1) * WAYS
    }

    fn find(&self, hash: u64) -> Option<usize> {
        Self::set(hash).find(|entry| self.entries[*entry] >> TIME == Self::tag(hash))
    }

    /// An entry for a block that is not known: an empty one, or that of the oldest of its set.
    fn make_room(&mut self, hash: u64, now: u64) -> usize {
        let age = |entry: &usize| match self.entries[*entry] {
            0 => u64::MAX,
            entry => now.wrapping_sub(entry) & MASK,
        };
        let oldest = Self::set(hash).max_by_key(age).unwrap_or_default();
        if self.entries[oldest] != 0 {
            self.evicted += 1 << self.shift;
        }
        self.pages[oldest] = PagesAccessed::default();
        oldest
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
        self.live_entries(accesses).map(|_| 1).sum()
    }

    /// The fraction of their pages that these blocks need in memory ([`touched`]).
    #[must_use]
    pub fn touched(&self, accesses: u64) -> f64 {
        touched(self.live_entries(accesses).map(|(_, pages)| *pages))
    }

    fn live_entries(&self, accesses: u64) -> impl Iterator<Item = (&u64, &PagesAccessed)> {
        let age = |entry: u64| self.clock.wrapping_sub(entry) & MASK;
        let entries = self.entries.iter().zip(&self.pages);
        entries.filter(move |(entry, _)| **entry != 0 && age(**entry) < accesses)
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
