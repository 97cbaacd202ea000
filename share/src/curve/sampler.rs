//! Which accesses are sampled, and what is remembered of them: the same as the probes do in the kernel
//! (`kernel/src/bpf/curves.h`).

use super::pages::{PAGES, PagesAccessed, touched};
use super::reuse_times::ReuseTimes;
use std::ops::Range;

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

// The sampling rate: as many blocks are sampled as can be remembered.

/// At most one access in this many may evict an entry that was still of interest.
const EVICTS: u64 = 64;
/// When fewer than one entry in this many is used, more blocks are sampled.
const UNUSED: u64 = 8;

/// How full a tenant's sampler is, when its rate is chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SamplerUse {
    /// One block in 2^shift is sampled.
    pub shift: u32,
    /// Accesses since the rate was last chosen.
    pub accesses: u64,
    /// Of these, as far as they are sampled, how many evicted an entry.
    pub evicted: u64,
    /// Entries that were used lately.
    pub live: u64,
    /// The largest size that the curve is wanted for, blocks.
    pub max_blocks: u64,
}

/// Blocks that are remembered while next to none is evicted. Sets fill unevenly: the first block is evicted when three in
/// four entries are used.
const REMEMBERED: u64 = ENTRIES as u64 * 3 / 4;

/// The shift to begin with for a tenant that caches `blocks` blocks: all of them that are sampled can be remembered.
#[must_use]
pub fn first_shift(blocks: u64) -> u32 {
    (0..31)
        .find(|shift| REMEMBERED << shift >= blocks)
        .unwrap_or(31)
}

/// The shift from now on, at most 31, one step at a time: fewer blocks are sampled when entries are evicted that would
/// still tell something of a cache of `max_blocks` blocks; more when many entries are unused.
#[must_use]
pub fn next_shift(sampler: SamplerUse) -> u32 {
    let SamplerUse {
        shift,
        accesses,
        evicted,
        live,
        max_blocks,
    } = sampler;
    let covered = REMEMBERED << shift.min(31);
    if evicted > accesses / EVICTS && covered < max_blocks {
        (shift + 1).min(31)
    } else if live < ENTRIES as u64 / UNUSED {
        shift.saturating_sub(1)
    } else {
        shift
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_cache_holds_can_be_remembered_from_the_first_access_on() {
        for (blocks, shift) in [
            (0, 0),
            (1536, 0),
            (1537, 1),
            (4800, 2),
            (1 << 30, 20),
            (u64::MAX, 31),
        ] {
            assert_eq!(first_shift(blocks), shift, "{blocks}");
        }
    }

    #[test]
    fn fewer_blocks_when_entries_are_evicted_more_when_many_are_unused() {
        let full = SamplerUse {
            shift: 3,
            accesses: 6400,
            evicted: 200,
            live: 2000,
            max_blocks: 1 << 20,
        };
        let with = |change: fn(&mut SamplerUse)| {
            let mut changed = full;
            change(&mut changed);
            changed
        };
        let cases = [
            ("forgets", full, 4),
            (
                "forgets what is beyond the largest size",
                with(|s| s.max_blocks = 10_000),
                3,
            ),
            ("forgets by chance", with(|s| s.evicted = 60), 3),
            (
                "a large part is of no use any more",
                with(|s| (s.evicted, s.live) = (0, 100)),
                2,
            ),
            (
                "looks at all",
                with(|s| (s.shift, s.evicted, s.live) = (0, 0, 0)),
                0,
            ),
            (
                "looks at next to none",
                with(|s| (s.shift, s.max_blocks) = (31, u64::MAX)),
                31,
            ),
        ];
        for (name, sampler, expected) in cases {
            assert_eq!(next_shift(sampler), expected, "{name}");
        }
    }
}
