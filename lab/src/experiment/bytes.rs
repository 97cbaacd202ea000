//! Amounts of bytes as people write them.

use serde::{Deserialize, Serialize};

/// Bytes: a number, or a text such as `64KiB`, `1GiB` or `60MB`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
#[serde(try_from = "Written", into = "u64")]
pub struct Bytes(pub u64);

#[derive(Deserialize)]
#[serde(untagged)]
enum Written {
    Number(u64),
    Text(String),
}

impl From<Bytes> for u64 {
    fn from(bytes: Bytes) -> Self {
        bytes.0
    }
}

impl TryFrom<Written> for Bytes {
    type Error = String;

    fn try_from(written: Written) -> Result<Self, String> {
        match written {
            Written::Number(number) => Ok(Self(number)),
            Written::Text(text) => text.parse(),
        }
    }
}

impl std::str::FromStr for Bytes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let expected =
            || format!("expected bytes such as \"64KiB\", \"1GiB\" or \"60MB\", found {text:?}");
        let text = text.trim();
        let end = text
            .find(|c: char| !c.is_ascii_digit())
            .unwrap_or(text.len());
        let (digits, unit) = text.split_at(end);
        let factor: u64 = match unit.trim() {
            "" | "B" => 1,
            "KB" | "kB" => 1_000,
            "MB" => 1_000_000,
            "GB" => 1_000_000_000,
            "KiB" => 1 << 10,
            "MiB" => 1 << 20,
            "GiB" => 1 << 30,
            _ => return Err(expected()),
        };
        let number: u64 = digits.parse().map_err(|_| expected())?;
        number.checked_mul(factor).map(Self).ok_or_else(expected)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units() {
        for (text, bytes) in [
            ("512", 512),
            ("60MB", 60_000_000),
            ("1 GiB", 1 << 30),
            ("4KiB", 4096),
        ] {
            assert_eq!(text.parse(), Ok(Bytes(bytes)), "{text}");
        }
        for text in ["", "GiB", "1.5GiB", "12 parsecs", "99999999999GiB", "-1MB"] {
            let error = text.parse::<Bytes>().unwrap_err();
            assert!(error.contains("expected bytes"), "{error}");
        }
    }
}
