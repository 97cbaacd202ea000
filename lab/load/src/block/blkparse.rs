//! The text that blkparse prints by default.

use super::line::{Line, SECTOR, request, seconds};

/// A line: `8,0 3 1 0.000000000 697 Q W 223490 + 8 [kjournald]`. What was queued counts: every other action
/// repeats the same request. After the last one comes a summary.
pub(super) fn line(line: &str) -> Result<Line, String> {
    let mut fields = line.split_whitespace();
    let mut next = || fields.next().unwrap_or_default();
    let device = next();
    if device.is_empty() || device.starts_with("CPU") || device.starts_with("Total") {
        return Ok(Line::End);
    }
    let is_number = |text: &str| text.parse::<u32>().is_ok();
    if !device
        .split_once(',')
        .is_some_and(|(major, minor)| is_number(major) && is_number(minor))
    {
        return Err("major,minor at the beginning".to_owned());
    }
    let (_cpu, _sequence) = (next(), next());
    let at = seconds(next()).ok_or("a time in seconds in the fourth field")?;
    let (_process, action, kind) = (next(), next(), next());
    if action != "Q" {
        return Ok(Line::Other);
    }
    let write = kind.contains('W');
    if kind.contains('D') || !(write || kind.contains('R')) {
        return Ok(Line::Other);
    }
    let first = next();
    if first.starts_with('[') {
        // A flush: it has no sectors.
        return Ok(Line::Other);
    }
    let (plus, count) = (next(), next());
    let sectors = |text: &str| text.parse::<u64>().ok();
    let (Some(first), "+", Some(count)) = (sectors(first), plus, sectors(count)) else {
        return Err("sector + sectors from the eighth field on".to_owned());
    };
    request(
        at,
        write,
        first.checked_mul(SECTOR),
        count.checked_mul(SECTOR),
    )
}
