//! Reuse times, as the programs count them: `struct curve` in `bpf/curves.h` and `curve_of` in `bpf/cgroups.h`.

use std::sync::atomic::{AtomicU64, Ordering};

use justitia_share::curve::{BUCKETS, ENTRIES, PagesAccessed, touched};
use libbpf_rs::MapCore as _;
use libbpf_rs::MapFlags;

use super::limits::{Limits, ProbeError};
use super::mapped::MappedArray;
use super::object::ProbeObject;
use crate::cgroup::CgroupId;

/// Words of a `struct curve`: clock, shift, evicted, cold and four unused ones; the buckets; the entries; their
/// pages, two in a word.
const HEAD: usize = 8;
const CLOCK: usize = 0;
const SHIFT: usize = 1;
const EVICTED: usize = 2;
const COLD: usize = 3;
/// Entries of a set: a block has its entry in one of these places.
const WAYS: usize = 8;
const FIRST: usize = HEAD + BUCKETS;
const PAGES: usize = FIRST + ENTRIES;
const WORDS: usize = PAGES + ENTRIES / 2;
/// Bytes of kernel memory that the curve of one tenant takes.
pub const CURVE_BYTES: u64 = 8 * WORDS as u64;
/// The bits of an entry that hold a time.
const TIME_MASK: u64 = (1 << 40) - 1;

/// The map `curves`.
#[derive(Debug)]
pub(super) struct Curves {
    words: MappedArray,
    count: usize,
}

/// What one curve has counted. The programs go on counting.
#[derive(Clone, Copy, Debug)]
pub struct ReuseHistogram<'a>(&'a [AtomicU64]);

impl ReuseHistogram<'_> {
    fn word(&self, index: usize) -> u64 {
        self.0
            .get(index)
            .map_or(0, |word| word.load(Ordering::Acquire))
    }

    /// Accesses by reuse time: the number of accesses to the curve since the one before of the same block. The buckets are
    /// those of `justitia_share::curve::bucket`. Each sampled access stands for those that were not sampled.
    pub fn times(&self) -> impl Iterator<Item = u64> {
        (HEAD..FIRST).map(|index| self.word(index))
    }

    /// Accesses to blocks without an entry: for the first time, or after the entry was evicted.
    #[must_use]
    pub fn cold(&self) -> u64 {
        self.word(COLD)
    }

    /// Accesses that evicted another block's entry.
    #[must_use]
    pub fn evicted(&self) -> u64 {
        self.word(EVICTED)
    }

    /// Blocks that have an entry and were accessed within the curve's last `accesses` accesses.
    #[must_use]
    pub fn live(&self, accesses: u64) -> u64 {
        self.live_entries(accesses).map(|_| 1).sum()
    }

    /// The fraction of their pages that these blocks need in memory ([`touched`]).
    #[must_use]
    pub fn touched(&self, accesses: u64) -> f64 {
        touched(self.live_entries(accesses).map(|entry| self.pages(entry)))
    }

    fn live_entries(&self, accesses: u64) -> impl Iterator<Item = usize> {
        let is_live = move |entry: &usize| self.age(*entry).is_some_and(|age| age < accesses);
        (FIRST..PAGES).filter(is_live)
    }

    fn pages(&self, entry: usize) -> PagesAccessed {
        let number = entry - FIRST;
        let word = self.word(PAGES + number / 2).to_ne_bytes();
        let (halves, _) = word.as_chunks::<4>();
        let half = halves.get(number % 2).copied().unwrap_or_default();
        PagesAccessed::from_bits(u32::from_ne_bytes(half))
    }

    /// How many accesses ago an entry was last used; `None` if it is empty.
    fn age(&self, index: usize) -> Option<u64> {
        let entry = self.word(index);
        // The programs go on counting: read after the entry, the clock is not behind it.
        let clock = self.word(CLOCK);
        (entry != 0).then(|| clock.wrapping_sub(entry) & TIME_MASK)
    }
}

impl<'a> ReuseHistogram<'a> {
    /// How far back an earlier access to a block would be known, in accesses, for each set of entries that is full: since
    /// the oldest of them. In the other sets no entry was evicted.
    pub fn lookbacks(self) -> impl Iterator<Item = u64> + use<'a> {
        let sets = (FIRST..PAGES).step_by(WAYS);
        sets.filter_map(move |first| {
            let mut ages = (first..first + WAYS).map(|index| self.age(index));
            ages.try_fold(0, |oldest: u64, age| Some(oldest.max(age?)))
        })
    }
}

impl Curves {
    pub(super) fn map(object: &ProbeObject, limits: &Limits) -> Result<Self, ProbeError> {
        let count = size(limits.max_curves);
        Ok(Self {
            words: MappedArray::map("curves", &object.map("curves")?, count * WORDS)?,
            count,
        })
    }

    pub(super) const fn count(&self) -> usize {
        self.count
    }

    pub(super) fn get(&self, curve: usize) -> Result<ReuseHistogram<'_>, ProbeError> {
        let start = self.start(curve)?;
        let words = self.words.words().get(start..start + WORDS);
        Ok(ReuseHistogram(words.unwrap_or_default()))
    }

    pub(super) fn clear(&self, curve: usize) -> Result<(), ProbeError> {
        let start = self.start(curve)?;
        self.words.clear(start..start + WORDS);
        Ok(())
    }

    /// Sets to which curve the accesses of cgroups count from now on, and the sampling rate.
    pub(super) fn choose(
        &self,
        object: &ProbeObject,
        changes: &[(CgroupId, Option<(usize, u32)>)],
    ) -> Result<(), ProbeError> {
        let curve_of = object.map("curve_of")?;
        for (cgroup, chosen) in changes {
            let key = cgroup.0.to_ne_bytes();
            let Some((curve, shift)) = chosen else {
                // It may have none.
                let _ = curve_of.delete(&key);
                continue;
            };
            let shift = (*shift).min(31);
            self.words
                .set(self.start(*curve)? + SHIFT, u64::from(shift));
            let number = u64::try_from(*curve).unwrap_or_default() + 1;
            let value = number << 32 | u64::from(u32::MAX >> shift);
            let updated = curve_of.update(&key, &value.to_ne_bytes(), MapFlags::ANY);
            updated.map_err(|error| ProbeError::Map {
                map: "curve_of",
                reason: error.to_string(),
            })?;
        }
        Ok(())
    }

    fn start(&self, curve: usize) -> Result<usize, ProbeError> {
        if curve < self.count {
            return Ok(curve * WORDS);
        }
        Err(ProbeError::Map {
            map: "curves",
            reason: format!("expected a curve below {}, found {curve}", self.count),
        })
    }
}

/// `number` as a size: no machine that runs eBPF has narrower ones.
pub(super) fn size(number: u32) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}
