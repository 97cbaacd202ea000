//! Means of the latest reads or writes.

/// Reads (or blocks written) of which a mean is known; of fewer it is not.
const KNOWN: u64 = 64;
/// A mean forgets half of what it is of, each time that this is more. Of so many reads whose times vary twice as much as
/// their mean it is off by a sixth.
const REMEMBERED: u64 = 256;

/// The mean time of the latest of many.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Mean {
    count: u64,
    ns: u64,
}

impl Mean {
    /// So many more took so long together, nanoseconds.
    pub(crate) const fn add(&mut self, count: u64, ns: u64) {
        self.count = self.count.saturating_add(count);
        self.ns = self.ns.saturating_add(ns);
        while self.count > REMEMBERED {
            self.count /= 2;
            self.ns /= 2;
        }
    }

    /// Nanoseconds of one; `None` while too few are known.
    pub(crate) fn get(&self) -> Option<u64> {
        (self.count >= KNOWN).then(|| self.ns / self.count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mean_is_of_the_latest() {
        let mut mean = Mean::default();
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
