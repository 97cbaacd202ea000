//! Sequence numbers, which wrap around: 1 follows the highest. 0 is none.

/// Whether `number` comes after `than`: it is less than half of all numbers ahead (RFC 1982).
#[must_use]
pub const fn is_later(number: u64, than: u64) -> bool {
    number.wrapping_sub(than).cast_signed() > 0
}

/// The number after this.
#[must_use]
pub const fn next(number: u64) -> u64 {
    match number.wrapping_add(1) {
        0 => 1,
        next => next,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_go_round() {
        assert_eq!((next(0), next(7), next(u64::MAX)), (1, 8, 1));
        for (number, than, later) in [
            (2, 1, true),
            (1, 1, false),
            (1, 2, false),
            (1, u64::MAX, true),
            (u64::MAX, 1, false),
            (u64::MAX, u64::MAX - 5000, true),
            ((1 << 63) - 1, 0, true),
            ((1 << 63) + 1, 0, false),
        ] {
            assert_eq!(is_later(number, than), later, "{number} {than}");
        }
    }
}
