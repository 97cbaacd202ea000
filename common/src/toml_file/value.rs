//! What the values of keys may be: for `deserialize_with`. An error says what was expected and what was found.

use std::fmt;
use std::str::FromStr;

use justitia_api::size;
use justitia_share::Weight;
use serde::de::{Error, Unexpected, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use toml::Value;

/// Takes any value and converts it with `accept`; `expected` says in the error what it should have been.
///
/// # Errors
/// `accept` returned `None`: what was expected and what was found.
pub fn expect<'de, D: Deserializer<'de>, T>(
    deserializer: D,
    expected: &str,
    accept: impl FnOnce(&Value) -> Option<T>,
) -> Result<T, D::Error> {
    let found = Value::deserialize(deserializer)?;
    accept(&found)
        .ok_or_else(|| D::Error::custom(format!("expected {expected}, found {}", shown(&found))))
}

/// What it is where that is short.
fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => format!("{text:?}"),
        Value::Array(_) => "a list".to_owned(),
        Value::Table(_) => "a table".to_owned(),
        simple => simple.to_string(),
    }
}

/// A whole number that the type can hold.
pub fn number<T: TryFrom<i64>>(value: &Value) -> Option<T> {
    T::try_from(value.as_integer()?).ok()
}

/// `true` or `false`.
///
/// # Errors
/// It is neither.
pub fn boolean<'de, D: Deserializer<'de>>(from: D) -> Result<bool, D::Error> {
    expect(from, "true or false", Value::as_bool)
}

/// A weight among siblings, 1 to 10,000.
///
/// # Errors
/// It is none.
pub fn weight<'de, D: Deserializer<'de>>(from: D) -> Result<Weight, D::Error> {
    expect(from, "a weight from 1 to 10000", |value| {
        Weight::try_from(number::<u64>(value)?).ok()
    })
}

/// As [`weight`], of a key that may be absent.
///
/// # Errors
/// It is no weight.
pub fn some_weight<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Weight>, D::Error> {
    weight(from).map(Some)
}

/// A number of bytes; written as a number, or with a unit of 1024: `256MiB`, `10 GiB`, `64K`, `1.5T`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Size(pub u64);

const UNITS: [(&str, u32); 4] = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bytes = size::parse(text).map(Self);
        bytes.ok_or_else(|| format!("expected {}, found {text:?}", size::EXPECTED))
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = justitia_share::num::to_f64(self.0);
        for (name, shift) in UNITS {
            let unit = justitia_share::num::to_f64(1 << shift);
            if bytes >= unit {
                return write!(f, "{:.1} {name}", bytes / unit);
            }
        }
        write!(f, "{} B", self.0)
    }
}

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(SizeVisitor)
    }
}

/// By itself, as [`Value`] has no number above 63 bits, and requests in JSON have sizes, too.
struct SizeVisitor;

impl Visitor<'_> for SizeVisitor {
    type Value = Size;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(size::EXPECTED)
    }

    fn visit_u64<E: Error>(self, bytes: u64) -> Result<Size, E> {
        Ok(Size(bytes))
    }

    fn visit_i64<E: Error>(self, bytes: i64) -> Result<Size, E> {
        let found = Unexpected::Signed(bytes);
        let bytes = u64::try_from(bytes).map_err(|_| E::invalid_value(found, &self))?;
        Ok(Size(bytes))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Size, E> {
        let bytes = size::parse(text).map(Size);
        bytes.ok_or_else(|| E::invalid_value(Unexpected::Str(text), &self))
    }
}
