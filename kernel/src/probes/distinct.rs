//! How many different pages of a file were touched, from what the probe in `bpf/shared.bpf.c` keeps.
//!
//! A file's cached pages are divided into at most 1,024 parts of `2^shift` pages. The probe marks a part when one of its
//! pages is touched, which it has chosen at random. So a part of which a tenth is touched is marked in a tenth of the cases:
//! on average the marked parts times their size are the pages touched. The standard deviation is at most half a part for
//! each part that is touched in part, so at most 2.3 % of what is cached of a file beyond 512 parts, and nothing for a file
//! of up to 4 MiB or for who touches all of it. Pages that lie further apart than 1,024 parts may count less, never more.

/// An estimate of how many different pages were touched.
pub(super) fn pages(shift: u64, marked: impl Iterator<Item = u64>) -> u64 {
    let parts: u32 = marked.map(u64::count_ones).sum();
    let size = u32::try_from(shift)
        .ok()
        .and_then(|shift| 1_u64.checked_shl(shift))
        .unwrap_or(u64::MAX);
    u64::from(parts).saturating_mul(size)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marked_parts_times_their_size() {
        assert_eq!(pages(0, [0, 0].into_iter()), 0);
        assert_eq!(pages(0, [u64::MAX, 1].into_iter()), 65);
        assert_eq!(pages(9, [0b101].into_iter()), 1024);
        assert_eq!(pages(64, [1].into_iter()), u64::MAX);
    }
}
