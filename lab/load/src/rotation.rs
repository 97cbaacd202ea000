//! Which files of a set exist, which are open, and which is next.
//!
//! As in Filebench, files are taken in rotation, those that exist by one rotor and those that do
//! not by another; a file that is open is not deleted.

use std::collections::BTreeSet;

/// A file of a set.
pub(crate) type Index = u32;

/// The files of a set. A file that is being created or deleted is neither present nor absent.
pub(crate) struct Rotation {
    present: BTreeSet<Index>,
    absent: BTreeSet<Index>,
    /// How many have each file open.
    opens: Vec<u32>,
    next_present: Index,
    next_absent: Index,
}

impl Rotation {
    /// `files` files, of which none is present or absent yet.
    pub(crate) fn new(files: usize) -> Self {
        Self {
            present: BTreeSet::new(),
            absent: BTreeSet::new(),
            opens: vec![0; files],
            next_present: 0,
            next_absent: 0,
        }
    }

    /// Whether a file exists.
    pub(crate) fn is_present(&self, index: Index) -> bool {
        self.present.contains(&index)
    }

    /// The files that exist.
    pub(crate) fn present(&self) -> &BTreeSet<Index> {
        &self.present
    }

    /// A file exists, or does not.
    pub(crate) fn set_present(&mut self, index: Index, present: bool) {
        self.present.remove(&index);
        self.absent.remove(&index);
        let side = if present {
            &mut self.present
        } else {
            &mut self.absent
        };
        side.insert(index);
    }

    /// Takes the next file that does not exist.
    pub(crate) fn take_absent(&mut self) -> Option<Index> {
        let index = next(&self.absent, self.next_absent, |_| true)?;
        self.absent.remove(&index);
        self.next_absent = index.wrapping_add(1);
        Some(index)
    }

    /// Opens the next file that exists.
    pub(crate) fn take_present(&mut self) -> Option<Index> {
        let index = next(&self.present, self.next_present, |_| true)?;
        self.next_present = index.wrapping_add(1);
        self.open(index)?;
        Some(index)
    }

    /// Takes the next file that exists and is not open.
    pub(crate) fn take_idle(&mut self) -> Option<Index> {
        let index = next(&self.present, self.next_present, |i| {
            usize::try_from(i).is_ok_and(|i| self.opens.get(i) == Some(&0))
        })?;
        self.present.remove(&index);
        self.next_present = index.wrapping_add(1);
        Some(index)
    }

    /// A file is open once more; `None` where there is no such file.
    pub(crate) fn open(&mut self, index: Index) -> Option<()> {
        *self.opens_of(index)? += 1;
        Some(())
    }

    /// A file is open once less.
    pub(crate) fn close(&mut self, index: Index) {
        if let Some(opens) = self.opens_of(index) {
            *opens = opens.saturating_sub(1);
        }
    }

    fn opens_of(&mut self, index: Index) -> Option<&mut u32> {
        self.opens.get_mut(usize::try_from(index).ok()?)
    }
}

/// The first fitting member at or after `from`, around the end if need be.
fn next(set: &BTreeSet<Index>, from: Index, fits: impl Fn(Index) -> bool) -> Option<Index> {
    set.range(from..)
        .chain(set.range(..from))
        .copied()
        .find(|index| fits(*index))
}
