//! How many blocks were accessed since a block was: an order of the entries of a table, by their last access.

/// The order of at most so many entries: 8 bytes each.
#[derive(Clone, Debug)]
pub(super) struct Recency {
    /// The position of each entry; 0 for one that is not in the order.
    positions: Box<[u16]>,
    /// A Fenwick tree over positions: how many entries have them.
    counts: Box<[u16]>,
    /// The last position that was given.
    last: u16,
    len: u16,
}

impl Recency {
    /// An order of entries 0 to `entries`, a power of two up to 16,384; rounded to that.
    pub(super) fn new(entries: usize) -> Self {
        let entries = entries.next_power_of_two().min(1 << 14);
        Self {
            positions: vec![0; entries].into_boxed_slice(),
            // Twice as many positions as entries: they are given anew each time that they are used up.
            counts: vec![0; 2 * entries + 1].into_boxed_slice(),
            last: 0,
            len: 0,
        }
    }

    /// Entries in the order.
    pub(super) const fn len(&self) -> usize {
        self.len as usize
    }

    /// Heap bytes.
    pub(super) fn bytes(&self) -> usize {
        size_of_val(&*self.positions) + size_of_val(&*self.counts)
    }

    /// Entries that were moved to the front after this one; all of them if it is not in the order.
    pub(super) fn newer(&self, entry: usize) -> usize {
        self.len() - usize::from(self.sum(self.position(entry)))
    }

    /// The entry that so many others are newer than.
    pub(super) fn after(&self, newer: usize) -> Option<usize> {
        let older = self.len().checked_sub(newer).filter(|older| *older > 0)?;
        // The first position up to which there are so many entries: down the tree.
        let (mut at, mut left) = (0, older);
        let mut step = self.counts.len().next_power_of_two() / 2;
        while step > 0 {
            let count = self.counts.get(at + step).copied().map(usize::from);
            if let Some(count) = count.filter(|count| *count < left) {
                (at, left) = (at + step, left - count);
            }
            step /= 2;
        }
        let of = |position: &u16| *position > 0 && usize::from(*position) == at + 1;
        self.positions.iter().position(of)
    }

    /// The entry was accessed now.
    pub(super) fn accessed(&mut self, entry: usize) {
        self.remove(entry);
        if usize::from(self.last) + 1 == self.counts.len() {
            self.renumber();
        }
        self.last += 1;
        self.len += 1;
        if let Some(position) = self.positions.get_mut(entry) {
            *position = self.last;
        }
        self.add(self.last, 1);
    }

    /// The entry is of no block any more.
    pub(super) fn remove(&mut self, entry: usize) {
        let position = self.position(entry);
        if position > 0 {
            self.add(position, u16::MAX);
            self.len -= 1;
            if let Some(position) = self.positions.get_mut(entry) {
                *position = 0;
            }
        }
    }

    fn position(&self, entry: usize) -> u16 {
        self.positions.get(entry).copied().unwrap_or(0)
    }

    /// Entries up to a position.
    fn sum(&self, position: u16) -> u16 {
        let (mut at, mut sum) = (position, 0_u16);
        while at > 0 {
            let count = self.counts.get(usize::from(at)).copied();
            sum = sum.wrapping_add(count.unwrap_or(0));
            at &= at - 1;
        }
        sum
    }

    /// Counts one more at a position, or, with `u16::MAX`, one less.
    fn add(&mut self, position: u16, one: u16) {
        let mut at = usize::from(position);
        while let Some(count) = self.counts.get_mut(at) {
            *count = count.wrapping_add(one);
            at += at & at.wrapping_neg();
        }
    }

    /// Gives the entries the positions from 1 on, in the same order.
    fn renumber(&mut self) {
        let mut entries = vec![0_u16; self.counts.len()];
        for (entry, position) in (1..).zip(self.positions.iter()) {
            if let Some(at) = entries.get_mut(usize::from(*position)) {
                *at = entry;
            }
        }
        self.counts.fill(0);
        self.last = 0;
        let in_order = entries.iter().skip(1).filter(|entry| **entry > 0);
        for entry in in_order.map(|entry| usize::from(*entry) - 1) {
            self.last += 1;
            if let Some(position) = self.positions.get_mut(entry) {
                *position = self.last;
            }
        }
        for position in 1..=self.last {
            self.add(position, 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_order_is_that_of_a_list(steps in prop::collection::vec((0..8_usize, any::<bool>()), 0..200)) {
            let mut order = Recency::new(8);
            let mut list: Vec<usize> = Vec::new();
            for (entry, accessed) in steps {
                list.retain(|known| *known != entry);
                if accessed {
                    list.push(entry);
                    order.accessed(entry);
                } else {
                    order.remove(entry);
                }
                prop_assert_eq!(order.len(), list.len());
                for (newer, entry) in list.iter().rev().enumerate() {
                    prop_assert_eq!(order.newer(*entry), newer);
                    prop_assert_eq!(order.after(newer), Some(*entry));
                }
                prop_assert_eq!(order.after(list.len()), None);
            }
        }
    }

    #[test]
    fn an_entry_that_is_none_does_no_harm() {
        let mut order = Recency::new(4);
        order.remove(99);
        assert_eq!((order.newer(99), order.len()), (0, 0));
    }
}
