//! Sizes as people write them in configurations and on command lines: one meaning everywhere.

/// What [`parse`] expects, in words.
pub const EXPECTED: &str = "a size such as 64K, 256MiB, 1.5GiB or a number of bytes";

const UNITS: [(char, u32); 4] = [('k', 10), ('m', 20), ('g', 30), ('t', 40)];

/// Bytes: a number, or one with a unit of 1024, whose case does not matter: `64K`, `64Ki`, `64KB` and `64KiB` are 65536. With
/// a unit the number may have a fraction: `1.5GiB`. `None` when it is none, or larger than 64 bits.
#[must_use]
pub fn parse(text: &str) -> Option<u64> {
    let text = text.trim();
    let end = text
        .find(|c: char| !(c.is_ascii_digit() || c == '.'))
        .unwrap_or(text.len());
    let (number, unit) = text.split_at_checked(end)?;
    let shift = shift(unit.trim())?;
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let digits = u32::try_from(fraction.len()).ok()?;
    // Nine digits are less than a byte of any unit but the largest.
    if (number.contains('.') && (fraction.is_empty() || shift == 0)) || digits > 9 {
        return None;
    }
    let whole = u128::from(whole.parse::<u64>().ok()?) << shift;
    let part = match digits {
        0 => 0,
        _ => (u128::from(fraction.parse::<u64>().ok()?) << shift) / 10u128.pow(digits),
    };
    u64::try_from(whole + part).ok()
}

/// The power of two that a unit stands for.
fn shift(unit: &str) -> Option<u32> {
    let unit = unit.to_ascii_lowercase();
    if unit.is_empty() || unit == "b" {
        return Some(0);
    }
    let first = unit.chars().next()?;
    let (_, shift) = UNITS.iter().find(|(name, _)| *name == first)?;
    let rest = unit.get(1..)?;
    matches!(rest, "" | "i" | "b" | "ib").then_some(*shift)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_unit_has_one_meaning_however_it_is_written() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("7B", 7),
            ("64K", 64 << 10),
            ("64 kib", 64 << 10),
            ("512Mi", 512 << 20),
            ("1MB", 1 << 20),
            ("2G", 2 << 30),
            ("2GB", 2 << 30),
            ("2gib", 2 << 30),
            (" 1.5GiB ", 3 << 29),
            ("0.5K", 512),
            ("2t", 2 << 40),
        ] {
            assert_eq!(parse(text), Some(bytes), "{text}");
        }
        for bad in [
            "",
            "GiB",
            "-1",
            "1.5",
            "1.G",
            ".5G",
            "1.2.3G",
            "1 PiB",
            "1 potato",
            "1KiBB",
            "1é",
            "99999999999TiB",
            "1.0000000001T",
        ] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }
}
