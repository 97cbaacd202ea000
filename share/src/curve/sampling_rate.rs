//! The sampling rate: as many blocks are sampled as can be remembered.

use super::sampler::ENTRIES;

/// At most one access in so many may evict an entry that was still of interest.
const EVICTS: u64 = 64;
/// When fewer than one entry in so many is used, more blocks are sampled.
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

/// The shift to begin with for a tenant whose cache holds so many blocks: all of those that are sampled can be remembered.
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
        let cases = [
            ("forgets", full, 4),
            (
                "forgets what is beyond the largest size",
                SamplerUse {
                    max_blocks: 10_000,
                    ..full
                },
                3,
            ),
            (
                "forgets by chance",
                SamplerUse {
                    evicted: 60,
                    ..full
                },
                3,
            ),
            (
                "a large part is of no use any more",
                SamplerUse {
                    evicted: 0,
                    live: 100,
                    ..full
                },
                2,
            ),
            (
                "looks at all",
                SamplerUse {
                    shift: 0,
                    evicted: 0,
                    live: 0,
                    ..full
                },
                0,
            ),
            (
                "looks at next to none",
                SamplerUse {
                    shift: 31,
                    max_blocks: u64::MAX,
                    ..full
                },
                31,
            ),
        ];
        for (name, sampler, expected) in cases {
            assert_eq!(next_shift(sampler), expected, "{name}");
        }
    }
}
