//! How many page frames there are, from `/proc/zoneinfo`.

use crate::parse::{self, ParseError, Parsed};

/// One more than the highest page frame number of any zone: memory that is not there between two zones counts.
///
/// # Errors
/// When there is no zone that spans any.
pub fn frames(text: &[u8]) -> Parsed<u64> {
    let (mut highest, mut spanned) = (0, 0);
    for (_, line) in parse::lines(text) {
        let mut words = parse::words(line);
        let (name, value) = (words.next(), words.next().and_then(parse::number));
        match (name, value) {
            (Some(b"spanned"), Some(pages)) => spanned = pages,
            // The last line of a zone.
            (Some(b"start_pfn:"), Some(start)) if spanned > 0 => {
                highest = highest.max(spanned.saturating_add(start));
                spanned = 0;
            }
            _ => {}
        }
    }
    if highest == 0 {
        return Err(ParseError::new(1, "a zone that spans page frames", text));
    }
    Ok(highest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_the_last_zone_counts() {
        let text = b"Node 0, zone      DMA\n  pages free     2816\n        spanned  4095\n        present  3998\n  start_pfn:           1\nNode 0, zone   Normal\n        spanned  262144\n  start_pfn:           1048576\nNode 0, zone  Movable\n        spanned  0\n  start_pfn:           0\n";
        assert_eq!(frames(text), Ok(1_310_720));
        assert!(frames(b"Node 0\n  start_pfn: 7\n").is_err());
    }
}
