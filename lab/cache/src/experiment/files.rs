//! A set of files, picked as Filebench picks them.

use justitia_cache::lab::Random;
use justitia_share::num::{to_f64, to_u64};
use std::ops::Range;

/// Blocks that a file can have: four times the mean.
pub(super) const MAX_FILE_BLOCKS: u32 = 16;

/// The mean size of a file, bytes: `webserver.f`, `webproxy.f` and `varmail.f` have 16 KiB.
const MEAN: f64 = 16_384.0;

/// Files at the beginning of a disk, each with room for [`MAX_FILE_BLOCKS`] blocks.
///
/// Filebench (1.5, `fileset_pick`) picks existing files in rotation, with one place in the rotation for all threads, and
/// files to be created in another rotation.
pub(super) struct Files {
    /// Blocks of each file; `None` for one that does not exist.
    sizes: Vec<Option<u32>>,
    existing: usize,
    missing: usize,
}

impl Files {
    /// Files of `bytes` together; with `all` every file exists, otherwise four of five.
    pub(super) fn new(bytes: u64, all: bool, random: &mut Random) -> Self {
        let mut sizes = Vec::new();
        let mut left = bytes / justitia_cache::lab::BLOCK_BYTES;
        while left > 0 {
            let size = size(random);
            left = left.saturating_sub(size.into());
            sizes.push(Some(size));
            // `prealloc=80`.
            if !all && sizes.len() % 5 == 4 {
                sizes.push(None);
            }
        }
        Self {
            sizes,
            existing: 0,
            missing: 0,
        }
    }

    /// Blocks of the disk that the set may take at most.
    pub(super) fn blocks(&self) -> u32 {
        u32::try_from(self.sizes.len()).map_or(u32::MAX, |n| n.saturating_mul(MAX_FILE_BLOCKS))
    }

    /// The next that exists.
    pub(super) fn pick(&mut self) -> usize {
        let found = next(&self.sizes, self.existing, Option::is_some);
        self.existing = found + 1;
        found
    }

    /// The next that does not.
    pub(super) fn pick_missing(&mut self) -> usize {
        let found = next(&self.sizes, self.missing, Option::is_none);
        self.missing = found + 1;
        found
    }

    /// A file's blocks.
    pub(super) fn of(&self, file: usize) -> Range<u32> {
        let first = u32::try_from(file).unwrap_or(0) * MAX_FILE_BLOCKS;
        first..first + self.sizes.get(file).copied().flatten().unwrap_or(0)
    }

    /// The blocks of each file.
    pub(super) fn all(&self) -> impl Iterator<Item = Range<u32>> {
        (0..self.sizes.len()).map(|file| self.of(file))
    }

    /// Removes a file; returns its blocks.
    pub(super) fn delete(&mut self, file: usize) -> Range<u32> {
        let blocks = self.of(file);
        if let Some(size) = self.sizes.get_mut(file) {
            *size = None;
        }
        blocks
    }

    /// Appends blocks, as many as have room; creates the file if there is none. Returns what was appended.
    pub(super) fn append(&mut self, file: usize, blocks: u32) -> Range<u32> {
        let end = self.of(file).end;
        let first = u32::try_from(file).unwrap_or(0) * MAX_FILE_BLOCKS;
        let to = (end + blocks).min(first + MAX_FILE_BLOCKS);
        if let Some(size) = self.sizes.get_mut(file) {
            *size = Some(to - first);
        }
        end..to
    }
}

/// The next file from `from` on, around the end, of which this is so; `from` if there is none.
fn next(sizes: &[Option<u32>], from: usize, so: fn(&Option<u32>) -> bool) -> usize {
    let from = from % sizes.len().max(1);
    let mut order = (from..sizes.len()).chain(0..from);
    let found = order.find(|at| sizes.get(*at).is_some_and(so));
    found.unwrap_or(from)
}

/// Blocks of a new file, gamma distributed with shape 1.5 (`cvar-gamma`).
pub(super) fn size(random: &mut Random) -> u32 {
    // Of shape 1 an exponential, of shape a half the square of a normal number, halved.
    let exponential = -part(random).ln();
    let normal = (-2.0 * part(random).ln()).sqrt() * (std::f64::consts::TAU * part(random)).cos();
    let bytes = (exponential + normal * normal / 2.0) / 1.5 * MEAN;
    blocks(bytes)
}

/// Blocks of an append, uniform up to 16 KiB (`appendfilerand`).
pub(super) fn append(random: &mut Random) -> u32 {
    blocks(part(random) * MEAN)
}

fn blocks(bytes: f64) -> u32 {
    let blocks = to_u64((bytes / to_f64(justitia_cache::lab::BLOCK_BYTES)).ceil());
    u32::try_from(blocks)
        .unwrap_or(MAX_FILE_BLOCKS)
        .clamp(1, MAX_FILE_BLOCKS)
}

/// Above 0, at most 1.
fn part(random: &mut Random) -> f64 {
    (to_f64(random.next() >> 12) + 1.0) / to_f64(1 << 52)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_picked_in_rotation_and_have_the_mean_size() {
        let mut random = Random::new(1);
        let mut files = Files::new(32 << 20, true, &mut random);
        let count = files.sizes.len();
        let mean = 8192.0 / to_f64(u64::try_from(count).unwrap());
        // A file ends in the middle of its last block: half a block more than 16 KiB.
        assert!((4.3..4.7).contains(&mean), "{mean} blocks a file");
        for file in (0..count).chain([0, 1]) {
            assert_eq!(files.pick(), file);
        }
    }

    #[test]
    fn one_in_five_is_missing_and_what_is_deleted_is_not_picked() {
        let mut files = Files::new(1 << 20, false, &mut Random::new(2));
        assert_eq!([0; 5].map(|_| files.pick()), [0, 1, 2, 3, 5]);
        assert_eq!([0; 2].map(|_| files.pick_missing()), [4, 9]);
        let gone = files.delete(6);
        assert!(!gone.is_empty() && gone.start == 6 * MAX_FILE_BLOCKS);
        assert_eq!(files.pick(), 7);
        assert_eq!(
            files.append(6, 3),
            6 * MAX_FILE_BLOCKS..6 * MAX_FILE_BLOCKS + 3
        );
        assert_eq!(
            files.append(6, 99),
            6 * MAX_FILE_BLOCKS + 3..7 * MAX_FILE_BLOCKS
        );
        assert_eq!(files.of(6), 6 * MAX_FILE_BLOCKS..7 * MAX_FILE_BLOCKS);
    }
}
