//! Numbers as small integers: scales that lose little, and a variable-length encoding.

use justitia_share::PAGE_SIZE;
use justitia_share::num::{to_f64, to_u64};

/// Steps per doubling: neighbours are 1.1 % apart.
const STEPS: f64 = 64.0;

/// The step of a value on a logarithmic scale; 0 stays 0, `base` is where it begins to be logarithmic.
pub(super) fn step(value: f64, base: f64) -> i64 {
    let step = to_u64(STEPS * (1.0 + value.max(0.0) / base).log2());
    i64::try_from(step).unwrap_or(0)
}

/// The value of a [`step`].
pub(super) fn unstep(step: i64, base: f64) -> f64 {
    base * ((to_f64(step.unsigned_abs()) / STEPS).exp2() - 1.0)
}

/// A kind of number: how it becomes an integer, and comes back.
pub(super) trait Codec {
    /// The number.
    type Value;
    /// As an integer.
    fn encode(value: Self::Value) -> i64;
    /// And back, within the kind's precision.
    fn decode(figure: i64) -> Self::Value;
}

/// An exact number.
pub(super) struct Exact;

impl Codec for Exact {
    type Value = u64;
    fn encode(value: u64) -> i64 {
        i64::try_from(value).unwrap_or(i64::MAX)
    }
    fn decode(figure: i64) -> u64 {
        figure.unsigned_abs()
    }
}

/// Seconds, to a millisecond.
pub(super) struct Millis;

impl Codec for Millis {
    type Value = f64;
    fn encode(value: f64) -> i64 {
        i64::try_from(to_u64(value * 1000.0)).unwrap_or(0)
    }
    fn decode(figure: i64) -> f64 {
        to_f64(figure.unsigned_abs()) / 1000.0
    }
}

/// Bytes, to 1.1 % from a page on.
pub(super) struct Bytes;

impl Codec for Bytes {
    type Value = u64;
    fn encode(value: u64) -> i64 {
        step(to_f64(value), to_f64(PAGE_SIZE))
    }
    fn decode(figure: i64) -> u64 {
        to_u64(unstep(figure, to_f64(PAGE_SIZE)))
    }
}

/// Bytes that may be unlimited.
pub(super) struct MaybeBytes;

impl Codec for MaybeBytes {
    type Value = Option<u64>;
    fn encode(value: Option<u64>) -> i64 {
        value.map_or(0, |bytes| 1 + Bytes::encode(bytes))
    }
    fn decode(figure: i64) -> Option<u64> {
        (figure > 0).then(|| Bytes::decode(figure - 1))
    }
}

/// A count, to 1.1 %.
pub(super) struct Count;

impl Codec for Count {
    type Value = u64;
    fn encode(value: u64) -> i64 {
        step(to_f64(value), 1.0)
    }
    fn decode(figure: i64) -> u64 {
        to_u64(unstep(figure, 1.0))
    }
}

/// Seconds, to 1.1 %.
pub(super) struct Seconds;

impl Codec for Seconds {
    type Value = f64;
    fn encode(value: f64) -> i64 {
        step(value, 1.0)
    }
    fn decode(figure: i64) -> f64 {
        unstep(figure, 1.0)
    }
}

/// Bytes per second, to 1.1 % from a page per second on.
pub(super) struct ByteRate;

impl Codec for ByteRate {
    type Value = f64;
    fn encode(value: f64) -> i64 {
        step(value, to_f64(PAGE_SIZE))
    }
    fn decode(figure: i64) -> f64 {
        unstep(figure, to_f64(PAGE_SIZE))
    }
}

/// Events per second, to 1.1 % from 0.1 on.
pub(super) struct EventRate;

impl Codec for EventRate {
    type Value = f64;
    fn encode(value: f64) -> i64 {
        step(value, 0.1)
    }
    fn decode(figure: i64) -> f64 {
        unstep(figure, 0.1)
    }
}

/// A small number that may be missing: a PV, a latency in seconds. To 1.1 % from 0.00001 on.
pub(super) struct Small;

impl Codec for Small {
    type Value = Option<f64>;
    fn encode(value: Option<f64>) -> i64 {
        value.map_or(0, |v| 1 + step(v, 1e-5))
    }
    fn decode(figure: i64) -> Option<f64> {
        (figure > 0).then(|| unstep(figure - 1, 1e-5))
    }
}

/// A fraction, 0 to 1, that may be missing, in steps of half a percent.
pub(super) struct Fraction;

impl Codec for Fraction {
    type Value = Option<f64>;
    fn encode(value: Option<f64>) -> i64 {
        value.map_or(0, |v| {
            1 + i64::try_from(to_u64(200.0 * v.clamp(0.0, 1.0))).unwrap_or(0)
        })
    }
    fn decode(figure: i64) -> Option<f64> {
        (figure > 0).then(|| to_f64(figure.unsigned_abs() - 1) / 200.0)
    }
}

/// A length, to be written by [`put`].
pub(super) fn length(n: usize) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

/// Seven bits a byte, small numbers of either sign short.
pub(super) fn put(out: &mut Vec<u8>, value: i64) {
    let mut rest = (value << 1 ^ value >> 63).cast_unsigned();
    while rest >= 128 {
        out.push(u8::try_from(rest & 127).unwrap_or(0) | 128);
        rest >>= 7;
    }
    out.push(u8::try_from(rest).unwrap_or(0));
}

/// The inverse of [`put`].
pub(super) fn get(from: &mut &[u8]) -> Result<i64, &'static str> {
    let mut value = 0u64;
    for shift in (0..64).step_by(7) {
        let (&byte, rest) = from.split_first().ok_or("more figures")?;
        *from = rest;
        value |= u64::from(byte & 127) << shift;
        if byte < 128 {
            return Ok((value >> 1).cast_signed() ^ -(value & 1).cast_signed());
        }
    }
    Err("figures of at most ten bytes")
}

/// A length that [`put`] has written.
pub(super) fn size(from: &mut &[u8]) -> Result<usize, &'static str> {
    usize::try_from(get(from)?).map_err(|_| "a number of things")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_come_back() {
        for value in [0, 1, -1, 63, 64, -64, -65, i64::MAX, i64::MIN] {
            let mut out = Vec::new();
            put(&mut out, value);
            assert_eq!(get(&mut out.as_slice()), Ok(value));
        }
        assert!(get(&mut &[255u8; 20][..]).is_err());
        assert!(get(&mut &[][..]).is_err());
    }

    #[test]
    fn amounts_come_back_within_their_precision() {
        for n in 13..60 {
            let x = (1u64 << n) + 12_345;
            let back = Bytes::decode(Bytes::encode(x));
            assert!(
                to_f64(back.abs_diff(x)) < 0.006 * to_f64(x + 4096),
                "{x} {back}"
            );
        }
        assert_eq!(Bytes::decode(Bytes::encode(0)), 0);
        let none = (Small::encode(None), Fraction::encode(None));
        assert_eq!(
            (Small::decode(none.0), Fraction::decode(none.1)),
            (None, None)
        );
        assert_eq!(Fraction::decode(Fraction::encode(Some(1.0))), Some(1.0));
        let pv = Small::decode(Small::encode(Some(0.25))).unwrap();
        assert!((pv - 0.25).abs() < 0.003);
    }
}
