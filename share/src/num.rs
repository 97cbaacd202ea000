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
