//! How much of a pool's pages is offered, by what becomes of accepted puts: those that are never read again cost the guest
//! and gain it nothing.
//!
//! The fate of a put is known when it is hit (an exclusive cache then gives it back), evicted, or removed by a write.
//! Hits of the fates are what puts are worth. Blocks are sampled by a hash of their number, so what little is
//! offered shows what the rest would be worth.

use justitia_link::PoolRow;

use super::acceptance::LEAST;

/// Fates after which is decided, where all is offered.
const ENOUGH: u64 = 1024;
/// And where little is.
const ENOUGH_SAMPLED: u64 = 64;

/// Of 100 fates so many hits are worth all the puts; of fewer than half of it they are not.
const WORTH: u64 = 10;

/// So many times the guest's memory are put without a hit, before that counts as a fate: a working set that is larger
/// gains little.
const MEMORIES: u64 = 4;

/// A pool's figures that decisions are made of, as they grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Figures {
    /// Blocks that were accepted.
    pub(crate) accepted: u64,
    /// Blocks that were hit.
    pub(crate) hits: u64,
    /// Blocks that were evicted or removed by writes.
    pub(crate) lost: u64,
}

impl From<&PoolRow> for Figures {
    fn from(row: &PoolRow) -> Self {
        Self {
            accepted: row.accepted,
            hits: row.hits,
            lost: row.evictions.saturating_add(row.invalidations),
        }
    }
}

/// How much is offered, and the figures at the last decision.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Worth {
    /// One block in `2^shift`.
    pub(crate) shift: u32,
    since: Figures,
}

impl Worth {
    /// Of a pool whose figures are these.
    pub(crate) const fn from(since: Figures) -> Self {
        Self { shift: 0, since }
    }
}

/// What follows on a pool's figures; `memory` is the guest's, in blocks.
pub(crate) fn decide(before: Worth, now: Figures, memory: u64) -> Worth {
    let grown = |of: fn(&Figures) -> u64| of(&now).saturating_sub(of(&before.since));
    let (accepted, hits) = (grown(|f| f.accepted), grown(|f| f.hits));
    let fates = hits.saturating_add(grown(|f| f.lost));
    let sampled = |blocks: u64, least: u64| (blocks >> before.shift).max(least);
    let many = accepted >= sampled(memory.saturating_mul(MEMORIES), ENOUGH_SAMPLED);
    if fates < sampled(ENOUGH, ENOUGH_SAMPLED) && !many {
        return before;
    }
    let of = if many { fates.max(accepted / 2) } else { fates };
    let shift = match hits.saturating_mul(100) {
        hits if hits >= of.saturating_mul(WORTH) => before.shift.saturating_sub(2),
        hits if hits < of.saturating_mul(WORTH) / 2 => (before.shift + 2).min(LEAST),
        _ => before.shift,
    };
    Worth { shift, since: now }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEMORY: u64 = 65_536;

    fn at(shift: u32) -> Worth {
        Worth {
            shift,
            since: Figures {
                accepted: 1_000_000,
                hits: 1000,
                lost: 10_000,
            },
        }
    }

    #[test]
    fn what_is_never_read_again_is_offered_less() {
        // (before, accepted, hits and lost since), and the shift after; whether it was a decision.
        for (before, accepted, hits, lost, shift, decided) in [
            // Nothing is known yet of what became of them.
            (0, 100_000, 0, 0, 0, false),
            (0, 100_000, 500, 500, 0, false),
            // Worth it: one in ten is read again.
            (0, 5000, 200, 1000, 0, true),
            (6, 2000, 20, 80, 4, true),
            // Not.
            (0, 5000, 10, 1100, 2, true),
            (2, 5000, 0, 300, 4, true),
            (6, 2000, 0, 64, 6, true),
            // In between.
            (2, 5000, 80, 1000, 2, true),
            // A cache that is never full: after four times the memory.
            (0, 4 * MEMORY, 0, 0, 2, true),
            (0, 4 * MEMORY, MEMORY, 0, 0, true),
            (4, MEMORY / 4, 0, 0, 6, true),
        ] {
            let before = at(before);
            let now = Figures {
                accepted: before.since.accepted + accepted,
                hits: before.since.hits + hits,
                lost: before.since.lost + lost,
            };
            let after = decide(before, now, MEMORY);
            let case = (before.shift, accepted, hits, lost);
            assert_eq!(
                (after.shift, after.since == now),
                (shift, decided),
                "{case:?}"
            );
        }
    }

    /// A fileserver whose puts are never read again comes down to one in 64 within a few thousand of them; when it begins
    /// to read again, all are offered soon.
    #[test]
    fn it_comes_down_and_up_again() {
        let mut worth = Worth::default();
        let mut figures = Figures::default();
        let mut put = 0;
        while worth.shift < LEAST {
            let blocks = 4096 >> worth.shift;
            put += blocks;
            figures.accepted += blocks;
            figures.lost += blocks;
            worth = decide(worth, figures, MEMORY);
            assert!(put < 10_000);
        }
        let mut rounds = 0;
        while worth.shift > 0 {
            let blocks = 4096 >> worth.shift;
            figures.accepted += blocks;
            figures.hits += blocks / 2;
            figures.lost += blocks / 2;
            worth = decide(worth, figures, MEMORY);
            rounds += 1;
            assert!(rounds < 10);
        }
    }
}
