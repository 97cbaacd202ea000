//! Buckets of reuse times: each as wide as an eighth of the power of two that it lies above.

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
