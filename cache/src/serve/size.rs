//! Sizes as people write them.

use justitia_api::size;
use serde::{Deserialize, Deserializer, Serialize};
use std::fmt;
use std::str::FromStr;

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
