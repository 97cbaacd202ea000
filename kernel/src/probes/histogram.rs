//! Latencies of calls.

use serde::{Deserialize, Serialize};

/// Counts by powers of two: bucket `n` holds durations of at least 2^n and less than 2^(n+1)
/// nanoseconds; the first also holds 0, the last everything longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Histogram {
    /// The counts; the last bucket begins at 2^39 ns, about nine minutes.
    pub buckets: [u64; Self::BUCKETS],
    /// Nanoseconds, all together.
    pub sum_ns: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self {
            buckets: [0; Self::BUCKETS],
            sum_ns: 0,
        }
    }
}

impl Histogram {
    /// How many buckets there are.
    pub const BUCKETS: usize = 32;
    /// The first bucket holds everything below 2^(SHIFT + 1) ns.
    pub const SHIFT: u32 = 8;

    /// The number of calls.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// The upper end of a bucket in nanoseconds; `None` for the last, which has none.
    #[must_use]
    pub fn upper_ns(bucket: usize) -> Option<u64> {
        let exponent = u32::try_from(bucket).ok()? + Self::SHIFT + 1;
        (bucket + 1 < Self::BUCKETS).then(|| 1 << exponent)
    }

    /// A duration that at least the part `quantile` (0 to 1) of the calls did not exceed, in
    /// nanoseconds: the upper end of the bucket in which it lies. `None` when nothing was timed, or
    /// when it lies in the last bucket.
    #[must_use]
    pub fn quantile_ns(&self, quantile: f64) -> Option<u64> {
        use justitia_share::num::{to_f64, to_u64};
        let count = self.count();
        let rank = to_u64((to_f64(count) * quantile.clamp(0.0, 1.0)).ceil()).max(1);
        let mut seen = 0;
        let bucket = self.buckets.iter().position(|n| {
            seen += n;
            seen >= rank
        })?;
        Self::upper_ns(bucket)
    }

    /// What was added since `before`.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        let mut difference = *self;
        for (now, then) in difference.buckets.iter_mut().zip(before.buckets) {
            *now = now.saturating_sub(then);
        }
        difference.sum_ns = self.sum_ns.saturating_sub(before.sum_ns);
        difference
    }
}

/// Latencies of one cgroup's calls on regular files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Latencies {
    /// `read`, `pread` and their vectored kin.
    pub read: Histogram,
    /// `write`, `pwrite` and their vectored kin.
    pub write: Histogram,
    /// `fsync`, `fdatasync`, `msync`, and writes that ask for it.
    pub sync: Histogram,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_upper_ends() {
        let mut histogram = Histogram::default();
        assert_eq!(histogram.quantile_ns(0.5), None);
        histogram.buckets[0] = 90;
        histogram.buckets[3] = 10;
        assert_eq!(histogram.quantile_ns(0.0), Some(512));
        assert_eq!(histogram.quantile_ns(0.9), Some(512));
        assert_eq!(histogram.quantile_ns(0.91), Some(4096));
        assert_eq!(histogram.quantile_ns(1.0), Some(4096));
        histogram.buckets[31] = 1000;
        assert_eq!(histogram.quantile_ns(1.0), None);
        assert_eq!(histogram.since(&histogram), Histogram::default());
    }
}
