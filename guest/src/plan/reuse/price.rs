//! What a put costs beside what a hit saves: how much of what is put must be read again.

use justitia_share::RecentMean;

/// Of fewer than one in so many puts that are hit nothing can be said: a sample has as many by chance. So a host that says
/// that a hit saves ages is not believed, and what is never read again is not offered for ever.
const MOST: u64 = 500;

/// The mean time of the latest blocks: those of 64 MiB, some seconds of a busy guest.
pub(crate) type Mean = RecentMean<16_384>;

/// What a put costs beside what a hit saves, in the same unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Price {
    cost: u64,
    saving: u64,
}

impl Default for Price {
    /// One put in 20 must be hit: what is taken for true while it is not known. Of a processor and a disk of today it is
    /// rather less.
    fn default() -> Self {
        Self {
            cost: 1,
            saving: 20,
        }
    }
}

impl Price {
    /// Of what a put costs and a hit saves, nanoseconds; [`default`](Self::default) while one of them is not known.
    pub(crate) fn new(cost: Option<u64>, saving: Option<u64>) -> Self {
        let (Some(cost), Some(saving)) = (cost, saving) else {
            return Self::default();
        };
        let cost = cost.max(1);
        Self {
            cost,
            saving: saving.min(cost.saturating_mul(MOST)),
        }
    }

    /// A put costs more than a hit saves: no reuse makes up for it.
    pub(crate) const fn is_hopeless(self) -> bool {
        self.saving < self.cost
    }

    /// Do so many hits save `times` what so many puts cost?
    pub(crate) fn is_worth(self, hits: u64, puts: u64, times: u32) -> bool {
        let product = |a: u64, b: u64| u128::from(a) * u128::from(b);
        // Both are far below 2^128: the factor is small.
        product(hits, self.saving) >= product(puts, self.cost).saturating_mul(times.into())
    }

    /// So many puts have so many hits, where they are just worth it.
    pub(crate) fn puts_of(self, hits: u64) -> u64 {
        let puts = u128::from(hits) * u128::from(self.saving) / u128::from(self.cost);
        u64::try_from(puts).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mean_is_of_the_latest_blocks() {
        let mut mean = Mean::default();
        mean.add(63, 63_000);
        assert_eq!(mean.get(), None);
        mean.add(1, 1000);
        assert_eq!(mean.get(), Some(1000));
        for _ in 0..10 {
            mean.add(10_000, 50_000_000);
        }
        assert!(mean.get().is_some_and(|ns| ns > 4900), "{mean:?}");
        // Whatever a host says.
        mean.add(u64::MAX, 0);
        assert_eq!(mean.get(), Some(0));
        mean.add(u64::MAX, u64::MAX);
        mean.add(0, u64::MAX);
        assert!(mean.get().is_some());
    }

    #[test]
    fn puts_are_worth_it_while_their_hits_save_more_than_they_cost() {
        let price = |cost, saving| Price::new(Some(cost), Some(saving));
        for (price, hits, puts, times, expected) in [
            (price(10, 100), 10, 100, 1, true),
            (price(10, 100), 9, 100, 1, false),
            (price(10, 100), 20, 100, 2, true),
            (price(10, 100), 19, 100, 2, false),
            // What is not known.
            (Price::new(None, Some(0)), 5, 100, 1, true),
            (Price::new(Some(9), None), 4, 100, 1, false),
            (Price::default(), 10, 100, 2, true),
            // A hit saves nothing, or less than a put costs.
            (price(10, 0), u64::MAX, 1, 1, false),
            (price(1, 0), 100, 100, 1, false),
            (price(50, 49), 100, 100, 1, false),
            // A host that says that it saves ages: one in 500 must be hit, all the same.
            (price(10, u64::MAX), 0, 1, 1, false),
            (price(10, u64::MAX), 1, 500, 1, true),
            (price(10, u64::MAX), 1, 501, 1, false),
            (price(0, 1), 1, 1, 1, true),
            (price(u64::MAX, u64::MAX), u64::MAX, u64::MAX, 2, false),
        ] {
            let found = price.is_worth(hits, puts, times);
            assert_eq!(found, expected, "{price:?} {hits} of {puts}, {times} times");
        }
        let hopeless = [(10, 0), (10, 9), (10, 10), (0, 0)].map(|(c, s)| price(c, s).is_hopeless());
        assert_eq!(hopeless, [true, true, false, true]);
        assert_eq!(price(10, 1000).puts_of(3), 300);
        assert_eq!(price(1, u64::MAX).puts_of(u64::MAX), u64::MAX);
    }
}
