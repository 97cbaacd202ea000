//! Conversions between integers and floats, in one place, with what they lose said.

/// `value` as a float. Above 2^53 the nearest representable number: callers use it for ratios and
/// displays, never for amounts that must add up.
#[must_use]
#[expect(
    clippy::cast_precision_loss,
    reason = "nearest float is what callers want"
)]
pub const fn to_f64(value: u64) -> f64 {
    value as f64
}

/// `value` rounded to the nearest integer, clamped to the range of `u64`; NaN becomes 0.
#[must_use]
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "float-to-int casts saturate, which is the contract"
)]
pub fn to_u64(value: f64) -> u64 {
    value.round() as u64
}

// A part of a whole.

/// A part of a whole, 0 to 1; never a percentage.
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd)]
pub struct Fraction(f64);

impl Fraction {
    /// Nothing of it.
    pub const ZERO: Self = Self(0.0);

    /// `value`, or what is nearest to it between 0 and 1; 0 if it is no number.
    #[must_use]
    pub const fn clamped(value: f64) -> Self {
        if value.is_nan() {
            return Self::ZERO;
        }
        Self(value.clamp(0.0, 1.0))
    }

    /// `part` of `whole`, in the same unit; 1 if it is more than that, 0 of nothing.
    #[must_use]
    pub fn of(part: u64, whole: u64) -> Self {
        if whole == 0 {
            return Self::ZERO;
        }
        Self::clamped(to_f64(part) / to_f64(whole))
    }

    /// The fraction as a number, 0 to 1.
    #[must_use]
    pub const fn get(self) -> f64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_fraction_is_outside_its_range() {
        let cases = [
            (-0.1, 0.0),
            (0.0, 0.0),
            (0.25, 0.25),
            (1.5, 1.0),
            (f64::INFINITY, 1.0),
            (f64::NEG_INFINITY, 0.0),
            (f64::NAN, 0.0),
        ];
        for (value, expected) in cases {
            assert_eq!(Fraction::clamped(value).get(), expected, "{value}");
        }
    }

    #[test]
    fn a_part_of_nothing_is_nothing() {
        let of = |part, whole| Fraction::of(part, whole).get();
        assert_eq!((of(1, 4), of(4, 4), of(9, 4)), (0.25, 1.0, 1.0));
        assert_eq!((of(0, 0), of(7, 0)), (0.0, 0.0));
    }
}
