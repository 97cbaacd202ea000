//! Which pages of a sampled block were accessed: the same as the probes record in the kernel
//! (`kernel/src/bpf/curves.h`).

use crate::num::to_f64;

/// Pages of 4 KiB in a block of the page cache ([`BLOCK`](super::BLOCK)).
pub const PAGES: u32 = 16;
/// The bits of all pages of a block.
const ALL: u32 = (1 << PAGES) - 1;

/// The pages of one block, as bits: in the lower half those accessed since it is remembered, in the upper half those
/// accessed more than once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PagesAccessed(u32);

impl PagesAccessed {
    /// As the probes record it.
    #[must_use]
    pub const fn from_bits(bits: u32) -> Self {
        Self(bits)
    }

    /// One access to `count` pages, from page `first` of the block on, as far as the block has them.
    pub fn access(&mut self, first: u32, count: u32) {
        let first = first.min(PAGES);
        let end = first.saturating_add(count).min(PAGES);
        let pages = ((1 << end) - 1) & (ALL << first);
        self.0 |= pages | (self.0 & pages) << PAGES;
    }

    /// The fraction of its pages that the block needs in memory, from a sixteenth to 1; `None` if none was accessed again.
    ///
    /// A program that accesses pages of a block at random has not accessed all yet that it is going to; then most of them
    /// were accessed once only. With `once` pages accessed, `again` of them more than once, `once² / again` is at least as
    /// many as there are to access: exactly where all were accessed again, and else up to twice as many.
    fn needed(self) -> Option<f64> {
        let once = f64::from((self.0 & ALL).count_ones());
        let again = f64::from((self.0 & ALL << PAGES).count_ones());
        (again > 0.0).then(|| (once * once / again / f64::from(PAGES)).min(1.0))
    }
}

/// The mean fraction of their pages that these blocks need in memory, from a sixteenth to 1; 1 of none.
///
/// Of a block of which no page was accessed again it is not known. Where a few are so, they are new or were read once, and
/// are taken for blocks like the others. Where most are so, nothing is known yet, and they count whole.
#[must_use]
pub fn touched(blocks: impl IntoIterator<Item = PagesAccessed>) -> f64 {
    let (mut all, mut known, mut sum) = (0_u64, 0_u64, 0.0);
    for block in blocks {
        all += 1;
        if let Some(needed) = block.needed() {
            known += 1;
            sum += needed;
        }
    }
    if known == 0 {
        return 1.0;
    }
    let (mean, unknown) = (sum / to_f64(known), 1.0 - to_f64(known) / to_f64(all));
    mean + (1.0 - mean) * unknown.powi(2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_needs_the_pages_that_are_accessed_again() {
        // Accesses as first page and count; pages needed, 0 where that is not known.
        type Case<'a> = (&'a [(u32, u32)], f64);
        let cases: [Case<'_>; 10] = [
            (&[], 0.0),
            (&[(3, 1)], 0.0),
            (&[(3, 1), (7, 1)], 0.0),
            (&[(3, 1), (3, 1)], 1.0),
            (&[(3, 2), (3, 2), (4, 1)], 2.0),
            (&[(0, 3), (1, 2)], 4.5),
            (&[(0, 8), (7, 8), (0, 1)], 16.0),
            (&[(0, 16), (0, 16)], 16.0),
            // What lies beyond the block is another's.
            (&[(15, 9), (15, u32::MAX)], 1.0),
            (&[(16, 1), (17, 1)], 0.0),
        ];
        for (accesses, expected) in cases {
            let mut pages = PagesAccessed::default();
            for (first, count) in accesses {
                pages.access(*first, *count);
            }
            let needed = pages.needed().unwrap_or(0.0) * f64::from(PAGES);
            assert!((needed - expected).abs() < 1e-9, "{accesses:?}: {needed}");
        }
    }

    #[test]
    fn blocks_have_their_mean_and_those_not_known_count_by_how_many_they_are() {
        const SPARSE: u32 = 0x0001_0001;
        const NEW: u32 = 1;
        // The blocks, and the pages that they need on average.
        let cases: [(&[u32], f64); 6] = [
            (&[], 16.0),
            (&[SPARSE], 1.0),
            (&[SPARSE, 0xFFFF_FFFF], 8.5),
            (&[NEW, 0xFFFF, NEW], 16.0),
            (&[SPARSE, NEW], 1.0 + 15.0 / 4.0),
            (&[SPARSE, SPARSE, SPARSE, NEW], 1.0 + 15.0 / 16.0),
        ];
        for (blocks, expected) in cases {
            let blocks = blocks.iter().map(|bits| PagesAccessed::from_bits(*bits));
            let found = touched(blocks) * f64::from(PAGES);
            assert!((found - expected).abs() < 1e-9, "{found}, {expected}");
        }
    }
}
