//! The blocks of its disks that a guest caches: a sample, of the same blocks on both sides.
//!
//! A block is in the sample if the hash of its number and the host's seed begins with `shift` zero bits (SHARDS, FAST '15). A
//! side that knows both finds the same blocks, without asking for each. One bit more halves the sample: so a side with too many
//! blocks thins both.

use serde::{Deserialize, Serialize};

use crate::memory::text::SerialText;

/// Bytes of a block: those of a page.
pub const BLOCK: u64 = 4096;

/// The most disks in an answer: those with the most cached bytes.
pub const MAX_DISKS: usize = 8;

/// The most bits: no guest has too many blocks then.
const MAX_SHIFT: u8 = 40;

/// The most characters of all disks' blocks, so that an answer fits into a line.
const MAX_DIGITS: usize = 2900;

/// The most blocks that are kept while counting: more than fit into an answer.
const MAX_KEPT: usize = 2048;

/// Whether a block is in the sample of one in `2^shift`.
#[must_use]
pub const fn is_sampled(block: u64, seed: u64, shift: u8) -> bool {
    // The finalizer of splitmix64.
    let mut mixed = block ^ seed;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^= mixed >> 31;
    mixed.leading_zeros() >= shift as u32
}

/// The blocks that a guest caches of its disks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Fields")]
pub struct Cached {
    seed: u64,
    shift: u8,
    file: u64,
    whole: bool,
    disks: Vec<CachedDisk>,
}

/// The blocks that a guest caches of a disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CachedDisk {
    /// Its serial, if it has one.
    pub serial: SerialText,
    /// Its size, bytes.
    pub size: u64,
    /// Bytes that are cached of it.
    pub bytes: u64,
    /// The sampled blocks that are cached, ascending: the first one, then the distance to each next one.
    blocks: Vec<u64>,
}

impl CachedDisk {
    /// The sampled blocks that are cached, ascending.
    pub fn blocks(&self) -> impl Iterator<Item = u64> {
        self.blocks.iter().scan(0_u64, |at, step| {
            *at = at.saturating_add(*step);
            Some(*at)
        })
    }
}

impl Cached {
    /// The seed of the request.
    #[must_use]
    pub const fn seed(&self) -> u64 {
        self.seed
    }

    /// One block in two to the power of this is in the sample.
    #[must_use]
    pub const fn shift(&self) -> u8 {
        self.shift
    }

    /// Bytes of files in the guest's page cache, on any device.
    #[must_use]
    pub const fn file(&self) -> u64 {
        self.file
    }

    /// Whether the guest covered everything; otherwise its time ran out.
    #[must_use]
    pub const fn is_whole(&self) -> bool {
        self.whole
    }

    /// The disks.
    #[must_use]
    pub fn disks(&self) -> &[CachedDisk] {
        &self.disks
    }
}

/// The fields as they are read.
#[derive(Deserialize)]
struct Fields {
    seed: u64,
    shift: u8,
    file: u64,
    whole: bool,
    disks: Vec<CachedDisk>,
}

impl TryFrom<Fields> for Cached {
    type Error = &'static str;

    fn try_from(fields: Fields) -> Result<Self, Self::Error> {
        let Fields {
            seed,
            shift,
            file,
            whole,
            disks,
        } = fields;
        if shift > MAX_SHIFT {
            return Err("expected a shift of at most 40");
        }
        if disks.len() > MAX_DISKS {
            return Err("expected at most 8 disks");
        }
        for disk in &disks {
            let later = disk.blocks.iter().skip(1);
            let steps = disk
                .blocks
                .iter()
                .try_fold(0, |at: u64, s| at.checked_add(*s));
            if later.clone().any(|step| *step == 0) || steps.is_none() {
                return Err("expected ascending blocks");
            }
            let blocks = disk.size / BLOCK;
            if !disk
                .blocks()
                .all(|at| at < blocks && is_sampled(at, seed, shift))
            {
                return Err("expected blocks of the disk and of the sample");
            }
        }
        let cached = Self {
            seed,
            shift,
            file,
            whole,
            disks,
        };
        match cached.digits() <= MAX_DIGITS {
            true => Ok(cached),
            false => Err("expected fewer blocks"),
        }
    }
}

impl Cached {
    /// The characters of its blocks in JSON.
    fn digits(&self) -> usize {
        let blocks = self.disks.iter().flat_map(|disk| &disk.blocks);
        let digits = |n: &u64| {
            n.checked_ilog10()
                .map_or(1, |log| log as usize)
                .saturating_add(2)
        };
        blocks.map(digits).fold(0, usize::saturating_add)
    }
}

/// Counts the cached blocks of disks, and keeps a sample of them that fits into an answer.
#[derive(Clone, Debug)]
pub struct Sampler {
    seed: u64,
    shift: u8,
    disks: Vec<Counted>,
    kept: usize,
}

#[derive(Clone, Debug)]
struct Counted {
    serial: SerialText,
    size: u64,
    bytes: u64,
    blocks: Vec<u64>,
}

impl Sampler {
    /// Begins with no block. `disks`: the serial of each, if it has one, and its size in bytes.
    #[must_use]
    pub fn new<'a>(seed: u64, disks: impl IntoIterator<Item = (&'a str, u64)>) -> Self {
        let disks = disks.into_iter().map(|(serial, size)| Counted {
            serial: SerialText::new(serial),
            size,
            bytes: 0,
            blocks: Vec::new(),
        });
        Self {
            seed,
            shift: 0,
            disks: disks.collect(),
            kept: 0,
        }
    }

    /// Counts a cached block. `disk` is the disk's index in the list. Blocks beyond the disk's end do not count.
    pub fn add(&mut self, disk: usize, block: u64) {
        let Some(counted) = self.disks.get_mut(disk) else {
            return;
        };
        if block >= counted.size / BLOCK {
            return;
        }
        counted.bytes = counted.bytes.saturating_add(BLOCK);
        if !is_sampled(block, self.seed, self.shift) {
            return;
        }
        counted.blocks.push(block);
        self.kept = self.kept.saturating_add(1);
        if self.kept > MAX_KEPT {
            self.thin();
        }
    }

    /// The answer. `file`: bytes of files in the page cache; `whole`: everything was covered.
    #[must_use]
    pub fn finish(mut self, file: u64, whole: bool) -> Cached {
        self.disks.sort_by_key(|disk| std::cmp::Reverse(disk.bytes));
        self.disks.truncate(MAX_DISKS);
        for disk in &mut self.disks {
            disk.blocks.sort_unstable();
            disk.blocks.dedup();
        }
        loop {
            let cached = Cached {
                seed: self.seed,
                shift: self.shift,
                file,
                whole,
                disks: self.disks.iter().map(Counted::told).collect(),
            };
            if cached.digits() <= MAX_DIGITS || self.shift == MAX_SHIFT {
                return cached;
            }
            self.thin();
        }
    }

    /// Halves the sample.
    fn thin(&mut self) {
        self.shift = self.shift.saturating_add(1).min(MAX_SHIFT);
        let (seed, shift) = (self.seed, self.shift);
        for disk in &mut self.disks {
            disk.blocks.retain(|block| is_sampled(*block, seed, shift));
        }
        self.kept = self.disks.iter().map(|disk| disk.blocks.len()).sum();
    }
}

impl Counted {
    fn told(&self) -> CachedDisk {
        let before = std::iter::once(&0).chain(&self.blocks);
        let steps = self.blocks.iter().zip(before);
        CachedDisk {
            serial: self.serial.clone(),
            size: self.size,
            bytes: self.bytes,
            blocks: steps
                .map(|(at, before)| at.saturating_sub(*before))
                .collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn one_block_in_two_to_the_shift_is_sampled() {
        for shift in [0, 3, 6] {
            let sampled = (0..1 << 16).filter(|block| is_sampled(*block, 7, shift));
            let expected = (1_usize << 16) >> shift;
            assert!(
                sampled.count().abs_diff(expected) < expected / 10 + 1,
                "{shift}"
            );
        }
        // A smaller sample is part of a larger one; another seed gives another sample.
        let of = |seed, shift| -> Vec<u64> {
            (0..4096)
                .filter(|block| is_sampled(*block, seed, shift))
                .collect()
        };
        assert!(of(7, 5).iter().all(|block| is_sampled(*block, 7, 4)));
        assert_ne!(of(7, 5), of(8, 5));
    }

    #[test]
    fn everything_of_little_is_told() {
        let mut sampler = Sampler::new(1, [("root", 40_960), ("", 1 << 40)]);
        for (disk, block) in [(0, 9), (0, 3), (0, 3), (0, 10), (1, 1 << 27), (2, 0)] {
            sampler.add(disk, block);
        }
        let cached = sampler.finish(5, true);
        assert_eq!((cached.shift(), cached.file()), (0, 5));
        let [root, other] = cached.disks() else {
            panic!("{cached:?}")
        };
        assert_eq!(root.blocks().collect::<Vec<_>>(), [3, 9]);
        assert_eq!(other.blocks().collect::<Vec<_>>(), [1 << 27]);
        assert_eq!((root.serial.as_str(), root.bytes), ("root", 3 * BLOCK));
    }

    #[test]
    fn of_much_a_sample_is_told_that_stands_for_all() {
        let mut sampler = Sampler::new(3, [("root", 1 << 40)]);
        for block in 0..1_000_000 {
            sampler.add(0, block * 64);
        }
        let cached = sampler.finish(0, true);
        let found = cached.disks()[0].blocks().count();
        assert!((250..1500).contains(&found), "{found}");
        let estimated = found << cached.shift();
        assert!(estimated.abs_diff(1_000_000) < 150_000, "{estimated}");
    }

    proptest! {
        #[test]
        fn an_answer_is_a_line_and_comes_back(
            seed in any::<u64>(),
            serials in prop::collection::vec(any::<String>(), 0..12),
            blocks in prop::collection::vec((0_usize..12, any::<u64>()), 0..3000),
            bits in 0_u32..64,
        ) {
            let disks = serials.iter().map(|serial| (serial.as_str(), u64::MAX));
            let mut sampler = Sampler::new(seed, disks);
            for (disk, block) in blocks {
                sampler.add(disk, block >> bits);
            }
            let cached = sampler.finish(u64::MAX, false);
            let body = crate::memory::Body::Cached(cached);
            let answer = crate::memory::Answer { id: u64::MAX, body };
            let line = crate::memory::encode(&answer);
            prop_assert!(line.len() <= crate::memory::MAX_LINE, "{}", line.len());
            prop_assert_eq!(crate::memory::Answer::decode(&line), Ok(answer));
        }
    }
}
