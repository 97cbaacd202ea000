//! How long after one access to a block the next one came.

/// The whole of which [`ReuseTimes::of_frequent`] has parts.
pub(super) const WHOLE: u64 = 1 << 16;

/// Counts of sampled accesses, each standing for as many as there are blocks for one that is sampled. Counts only grow:
/// what happened between two moments is the difference.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReuseTimes {
    /// Accesses by reuse time, in accesses of the tenant ([`bucket`]).
    pub times: Box<[u64; BUCKETS]>,
    /// Accesses to blocks of which no earlier access is known.
    pub cold: u64,
    /// All accesses, counted without sampling.
    pub accesses: u64,
    /// The accesses of [`times`](Self::times), each times the part that its block has of all sampled accesses, in
    /// 65,536ths; 0 where that is not counted. Most of it is of the blocks that are used much more than others.
    pub of_frequent: Box<[u64; BUCKETS]>,
}

impl Default for ReuseTimes {
    fn default() -> Self {
        Self {
            times: Box::new([0; BUCKETS]),
            cold: 0,
            accesses: 0,
            of_frequent: Box::new([0; BUCKETS]),
        }
    }
}

impl ReuseTimes {
    /// Counts an access that stands for `step` accesses, `reuse` accesses after the last one to the same block; `None` if
    /// no earlier one is known.
    pub fn count(&mut self, reuse: Option<u64>, step: u64) {
        let count = match reuse.and_then(|reuse| self.times.get_mut(bucket(reuse))) {
            Some(count) => count,
            None => &mut self.cold,
        };
        *count = count.wrapping_add(step);
    }

    /// Counts of an access that is [counted](Self::count) with this `reuse` and `step`, which part of the sampled accesses are
    /// its block's, in [`WHOLE`]ths.
    pub(super) fn count_share(&mut self, reuse: u64, step: u64, share: u64) {
        if let Some(sum) = self.of_frequent.get_mut(bucket(reuse)) {
            *sum = sum.wrapping_add(share.saturating_mul(step));
        }
    }

    /// Sampled accesses, each for as many as it stands for.
    #[must_use]
    pub fn sampled(&self) -> u64 {
        let times = self
            .times
            .iter()
            .fold(0_u64, |sum, count| sum.wrapping_add(*count));
        times.wrapping_add(self.cold)
    }

    /// What was counted since `before`.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        let mut since = self.clone();
        let times = since.times.iter_mut().zip(before.times.iter());
        let frequent = since.of_frequent.iter_mut();
        for (count, before) in times.chain(frequent.zip(before.of_frequent.iter())) {
            *count = count.wrapping_sub(*before);
        }
        since.cold = self.cold.wrapping_sub(before.cold);
        since.accesses = self.accesses.wrapping_sub(before.accesses);
        since
    }
}

// Buckets of reuse times: each as wide as an eighth of the power of two that it lies above.

/// How many buckets there are. The last holds everything from about 2^34 on.
pub const BUCKETS: usize = 256;

/// Buckets per power of two, as a power of two.
const FINE: u32 = 3;

/// The bucket, below [`BUCKETS`], of a reuse time in accesses. The same as in the probes (`kernel/src/bpf/curves.h`).
#[must_use]
pub fn bucket(reuse: u64) -> usize {
    let index = match reuse.checked_ilog2() {
        Some(octave) if octave >= FINE => {
            let part = (reuse >> (octave - FINE)) & ((1 << FINE) - 1);
            (u64::from(octave - FINE + 1) << FINE) + part
        }
        _ => reuse,
    };
    usize::try_from(index).map_or(BUCKETS - 1, |index| index.min(BUCKETS - 1))
}

/// The least reuse time in a bucket; for [`BUCKETS`], the first beyond the last.
#[must_use]
pub(super) const fn least(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    let octave = bucket >> FINE;
    if octave == 0 {
        return bucket;
    }
    ((1 << FINE) + (bucket & ((1 << FINE) - 1))) << (octave - 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn small_times_are_told_apart_and_large_ones_to_an_eighth() {
        for (reuse, expected) in [
            (0, 0),
            (7, 7),
            (8, 8),
            (15, 15),
            (16, 16),
            (17, 16),
            (18, 17),
            (320, 50),
        ] {
            assert_eq!(bucket(reuse), expected, "{reuse}");
        }
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
    }

    proptest! {
        #[test]
        fn a_time_lies_in_its_bucket(reuse in 0..1_u64 << 34) {
            let bucket = bucket(reuse);
            prop_assert!(least(bucket) <= reuse && reuse < least(bucket + 1));
        }
    }
}
