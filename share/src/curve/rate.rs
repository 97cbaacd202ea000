//! How many blocks are looked at: as many as can be remembered.

use super::sampler::ENTRIES;

/// Of the accesses, at most one in so many may make a block forgotten that was still of interest.
const FORGETS: u64 = 64;
/// When fewer than one entry in so many is used, more blocks are looked at.
const SPARE: u64 = 8;

/// What is known of a tenant's samples when the rate is chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Room {
    /// One block in 2^shift is looked at.
    pub shift: u32,
    /// Accesses since it was last asked.
    pub accesses: u64,
    /// Of these, as far as they are sampled, how many made a block forgotten.
    pub evicted: u64,
    /// Entries that were used lately.
    pub live: u64,
    /// The largest size that the curve is wanted for, blocks.
    pub horizon: u64,
}

/// One block in 2^shift to look at from now on, one step at a time: fewer when blocks are forgotten that would still
/// tell something of a cache of `horizon` blocks; more when there is much room.
#[must_use]
pub fn next_shift(room: Room) -> u32 {
    let Room {
        shift,
        accesses,
        evicted,
        live,
        horizon,
    } = room;
    // Sets fill unevenly: the first block is forgotten when three in four entries are used.
    let covered = (ENTRIES as u64 * 3 / 4) << shift.min(31);
    if evicted > accesses / FORGETS && covered < horizon {
        (shift + 1).min(31)
    } else if live < ENTRIES as u64 / SPARE {
        shift.saturating_sub(1)
    } else {
        shift
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fewer_blocks_when_some_are_forgotten_more_when_there_is_room() {
        let full = Room {
            shift: 3,
            accesses: 6400,
            evicted: 200,
            live: 2000,
            horizon: 1 << 20,
        };
        let cases = [
            ("forgets", full, 4),
            (
                "forgets what is beyond the horizon",
                Room {
                    horizon: 10_000,
                    ..full
                },
                3,
            ),
            (
                "forgets by chance",
                Room {
                    evicted: 60,
                    ..full
                },
                3,
            ),
            (
                "a large part is of no use any more",
                Room {
                    evicted: 0,
                    live: 100,
                    ..full
                },
                2,
            ),
            (
                "looks at all",
                Room {
                    shift: 0,
                    evicted: 0,
                    live: 0,
                    ..full
                },
                0,
            ),
            (
                "looks at next to none",
                Room {
                    shift: 31,
                    horizon: u64::MAX,
                    ..full
                },
                31,
            ),
        ];
        for (name, room, expected) in cases {
            assert_eq!(next_shift(room), expected, "{name}");
        }
    }
}
