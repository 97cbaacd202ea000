//! Means of the latest of many times.

/// Times of which a mean is known; of fewer it is not.
const KNOWN: u64 = 64;

/// The mean time of the latest of many: each time that it is of more than `REMEMBERED`, it forgets half of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecentMean<const REMEMBERED: u64> {
    count: u64,
    ns: u64,
}

impl<const REMEMBERED: u64> RecentMean<REMEMBERED> {
    /// So many more took so long together, nanoseconds.
    pub const fn add(&mut self, count: u64, ns: u64) {
        self.count = self.count.saturating_add(count);
        self.ns = self.ns.saturating_add(ns);
        while self.count > REMEMBERED {
            self.count /= 2;
            self.ns /= 2;
        }
    }

    /// Nanoseconds of one; `None` while fewer than 64 are known.
    #[must_use]
    pub fn get(&self) -> Option<u64> {
        (self.count >= KNOWN).then(|| self.ns / self.count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mean_is_of_the_latest() {
        let mut mean = RecentMean::<256>::default();
        mean.add(63, 63_000);
        assert_eq!(mean.get(), None);
        mean.add(1, 1000);
        assert_eq!(mean.get(), Some(1000));
        for _ in 0..2000 {
            mean.add(1, 5000);
        }
        assert!(mean.get().is_some_and(|ns| ns > 4900), "{mean:?}");
        mean.add(u64::MAX, u64::MAX);
        mean.add(0, u64::MAX);
        assert!(mean.get().is_some());
    }
}
