//! Reuse times as the programs count them: `struct curve` and `curve_of` in `bpf/curves.h` and `bpf/tenants.h`.

use libbpf_rs::{MapCore as _, MapFlags};
use std::sync::atomic::{AtomicU64, Ordering};

use super::load::Loaded;
use super::region::Region;
use super::{Limits, ProbeError};
use crate::cgroup::CgroupId;

/// Words of a `struct curve`: first clock, shift, evicted, cold; then the buckets; then the entries.
const HEAD: usize = 8;
const CLOCK: usize = 0;
const SHIFT: usize = 1;
const EVICTED: usize = 2;
const COLD: usize = 3;
/// Buckets of reuse times: as in `justitia_share::curve::bucket`.
const BUCKETS: usize = 256;
const ENTRIES: usize = 2048;
const WORDS: usize = HEAD + BUCKETS + ENTRIES;
/// The time in an entry.
const TIME_MASK: u64 = (1 << 40) - 1;

/// The map `curves`.
#[derive(Debug)]
pub(super) struct Curves {
    words: Region,
    count: usize,
}

/// What one curve has counted. The programs go on counting meanwhile.
#[derive(Clone, Copy, Debug)]
pub struct Reuse<'a>(&'a [AtomicU64]);

impl Reuse<'_> {
    fn word(&self, index: usize) -> u64 {
        self.0
            .get(index)
            .map_or(0, |word| word.load(Ordering::Relaxed))
    }

    /// Accesses by the time since the access before of the same block, in accesses of the same curve; the buckets are
    /// those of `justitia_share::curve::bucket`. Each access that was looked at counts for all that were not.
    pub fn times(&self) -> impl Iterator<Item = u64> {
        (HEAD..HEAD + BUCKETS).map(|index| self.word(index))
    }

    /// Accesses of blocks that were not remembered: for the first time, or after too long.
    #[must_use]
    pub fn cold(&self) -> u64 {
        self.word(COLD)
    }

    /// Accesses that made it forget a block.
    #[must_use]
    pub fn evicted(&self) -> u64 {
        self.word(EVICTED)
    }

    /// Blocks that are remembered and were accessed within the last `accesses` of the curve's accesses.
    #[must_use]
    pub fn live(&self, accesses: u64) -> u64 {
        let clock = self.word(CLOCK);
        let live = |entry: &u64| *entry != 0 && clock.wrapping_sub(*entry) & TIME_MASK < accesses;
        let entries = (HEAD + BUCKETS..WORDS).map(|index| self.word(index));
        entries.filter(live).map(|_| 1).sum()
    }
}

impl Curves {
    pub(super) fn map(loaded: &Loaded, limits: &Limits) -> Result<Self, ProbeError> {
        let count = super::open::size(limits.max_curves);
        Ok(Self {
            words: Region::map("curves", &loaded.map("curves")?, count * WORDS)?,
            count,
        })
    }

    pub(super) const fn count(&self) -> usize {
        self.count
    }

    pub(super) fn get(&self, curve: usize) -> Result<Reuse<'_>, ProbeError> {
        let start = self.start(curve)?;
        let words = self.words.words().get(start..start + WORDS);
        Ok(Reuse(words.unwrap_or_default()))
    }

    pub(super) fn clear(&self, curve: usize) -> Result<(), ProbeError> {
        let start = self.start(curve)?;
        self.words.clear(start..start + WORDS);
        Ok(())
    }

    /// Which curve cgroups count for from now on, and the part of the blocks that is looked at.
    pub(super) fn choose(
        &self,
        loaded: &Loaded,
        changes: &[(CgroupId, Option<(usize, u32)>)],
    ) -> Result<(), ProbeError> {
        let curve_of = loaded.map("curve_of")?;
        for (cgroup, chosen) in changes {
            let key = cgroup.0.to_ne_bytes();
            let Some((curve, shift)) = chosen else {
                // Not there when it had none.
                let _ = curve_of.delete(&key);
                continue;
            };
            let shift = (*shift).min(31);
            self.words
                .set(self.start(*curve)? + SHIFT, u64::from(shift));
            let number = u64::try_from(*curve).unwrap_or_default() + 1;
            let value = number << 32 | u64::from(u32::MAX >> shift);
            let told = curve_of.update(&key, &value.to_ne_bytes(), MapFlags::ANY);
            told.map_err(|error| ProbeError::Map {
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
