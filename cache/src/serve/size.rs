//! Sizes as people write them.

use serde::{Deserialize, Deserializer, Serialize};
use std::fmt;
use std::str::FromStr;

/// A number of bytes; written as a number, or with a unit of 1024: `256MiB`, `10 GiB`, `64K`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Size(pub u64);

const UNITS: [(&str, u32); 4] = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let error = || {
            format!("expected a size such as 256MiB, 10GiB or a number of bytes, found {text:?}")
        };
        let digits = text.trim().trim_end_matches(|c: char| !c.is_ascii_digit());
        let unit = text.trim()[digits.len()..].trim();
        let count: u64 = digits.parse().map_err(|_| error())?;
        let shift = if unit.is_empty() || unit == "B" {
            0
        } else {
            let same = |name: &str| {
                [name, &name[..1], &format!("{}B", &name[..1])]
                    .iter()
                    .any(|n| n.eq_ignore_ascii_case(unit))
            };
            let found = UNITS.iter().find(|(name, _)| same(name));
            found.ok_or_else(error)?.1
        };
        count.checked_mul(1 << shift).map(Self).ok_or_else(error)
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
        #[derive(Deserialize)]
        #[serde(
            untagged,
            expecting = "expected a size such as \"256MiB\" or a number of bytes"
        )]
        enum Written {
            Bytes(u64),
            Text(String),
        }
        match Written::deserialize(from)? {
            Written::Bytes(bytes) => Ok(Self(bytes)),
            Written::Text(text) => text.parse().map_err(serde::de::Error::custom),
        }
    }
}
