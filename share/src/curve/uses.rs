//! How often the blocks that are remembered were accessed.

use super::reuse_times::WHOLE;

/// Accesses of an entry, on average, after which all counts are halved: what was used much and is no more does not count for
/// ever.
const AVERAGE: u64 = 64;

/// The accesses of each entry since its block is remembered.
#[derive(Clone, Debug)]
pub(super) struct Uses {
    each: Box<[u32]>,
    all: u64,
}

impl Uses {
    pub(super) fn new(entries: usize) -> Self {
        Self {
            each: vec![0; entries].into_boxed_slice(),
            all: 0,
        }
    }

    /// Counts an access to an entry; the part of all accesses that are its, in [`WHOLE`]ths.
    pub(super) fn add(&mut self, entry: usize) -> u64 {
        let most = u64::try_from(self.each.len()).unwrap_or(u64::MAX);
        if self.all >= most.saturating_mul(AVERAGE) {
            self.each.iter_mut().for_each(|uses| *uses /= 2);
            self.all = self.each.iter().copied().map(u64::from).sum();
        }
        let Some(uses) = self.each.get_mut(entry) else {
            return 0;
        };
        *uses = uses.saturating_add(1);
        self.all += 1;
        u64::from(*uses) * WHOLE / self.all
    }

    pub(super) fn forget(&mut self, entry: usize) {
        if let Some(uses) = self.each.get_mut(entry) {
            self.all = self.all.saturating_sub(u64::from(*uses));
            *uses = 0;
        }
    }

    /// Heap bytes.
    pub(super) const fn bytes(&self) -> usize {
        size_of_val(&*self.each)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_of_an_entry_is_its_part_of_all_accesses() {
        let mut uses = Uses::new(4);
        assert_eq!(uses.add(0), WHOLE);
        assert_eq!(uses.add(1), WHOLE / 2);
        assert_eq!(uses.add(1), WHOLE * 2 / 3);
        uses.forget(1);
        assert_eq!((uses.add(0), uses.add(9)), (WHOLE, 0));
    }

    #[test]
    fn what_is_used_no_more_fades() {
        let mut uses = Uses::new(4);
        (0..200).for_each(|_| _ = uses.add(0));
        // Counts are halved whenever there are 64 of an entry on average.
        (0..2000).for_each(|_| _ = uses.add(1));
        assert!(uses.add(0) < WHOLE / 50);
        assert!(uses.all <= 4 * AVERAGE);
    }
}
