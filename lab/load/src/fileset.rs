//! A set of files: where they are, how they are made, and how workers take turns in them.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use crate::rotation::{Index, Rotation};
use crate::whole_file::write_file;

/// How often a worker that waits for a file checks whether the run is over.
const STOP_CHECK: Duration = Duration::from_millis(50);

/// The files under one directory.
pub(crate) struct FileSet {
    directory: PathBuf,
    width: u32,
    sizes: Vec<u64>,
    rotation: Mutex<Rotation>,
    changed: Condvar,
}

impl FileSet {
    /// The set of `sizes.len()` files under `directory`, `width` to a subdirectory. Files that
    /// are there are taken as they are.
    ///
    /// # Errors
    /// The directories cannot be made or a file cannot be looked up.
    pub(crate) fn open(directory: PathBuf, width: u32, sizes: Vec<u64>) -> Result<Self> {
        let set = Self {
            directory,
            width: width.max(1),
            rotation: Mutex::new(Rotation::new(sizes.len())),
            sizes,
            changed: Condvar::new(),
        };
        for index in (0..set.len()).step_by(usize::try_from(set.width)?) {
            let path = set.path(index);
            let parent = path.parent().unwrap_or(&set.directory);
            fs::create_dir_all(parent)
                .with_context(|| format!("make the directory {}", parent.display()))?;
        }
        for index in 0..set.len() {
            let path = set.path(index);
            let exists = path
                .try_exists()
                .with_context(|| format!("look for {}", path.display()))?;
            set.rotation().set_present(index, exists);
        }
        Ok(set)
    }

    /// How many files the set can have.
    pub(crate) fn len(&self) -> Index {
        Index::try_from(self.sizes.len()).unwrap_or(Index::MAX)
    }

    /// Where the files are.
    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    /// How many of them exist.
    pub(crate) fn existing(&self) -> usize {
        self.rotation().present().len()
    }

    /// Those that exist.
    pub(crate) fn indices(&self) -> Vec<Index> {
        self.rotation().present().iter().copied().collect()
    }

    /// The size in bytes with which a file is written.
    pub(crate) fn size(&self, index: Index) -> u64 {
        usize::try_from(index)
            .ok()
            .and_then(|i| self.sizes.get(i).copied())
            .unwrap_or(0)
    }

    /// Where a file is.
    pub(crate) fn path(&self, index: Index) -> PathBuf {
        self.directory
            .join(format!("{:04}", index / self.width))
            .join(format!("{index:08}"))
    }

    /// Writes files, drawn by `seed`, until `percent` of the set exist, one after the other,
    /// `buffer` at a time. Surplus files are deleted.
    ///
    /// # Errors
    /// A file cannot be written: a set that is not complete is not the workload.
    pub(crate) fn prepare(&self, percent: u32, seed: u64, buffer: &[u8]) -> Result<()> {
        let wanted = u64::from(self.len()) * u64::from(percent) / 100;
        let mut order: Vec<Index> = (0..self.len()).collect();
        if percent < 100 {
            shuffle(&mut order, seed);
        }
        for (position, index) in (0..).zip(order) {
            let path = self.path(index);
            let exists = self.rotation().is_present(index);
            if position < wanted && !exists {
                write_file(&path, self.size(index), buffer)
                    .with_context(|| format!("write {}", path.display()))?;
            } else if position >= wanted && exists {
                fs::remove_file(&path).with_context(|| format!("delete {}", path.display()))?;
            }
            self.rotation().set_present(index, position < wanted);
        }
        Ok(())
    }

    /// Takes the next file that does not exist; the caller creates it and calls [`Self::created`].
    /// Waits for one unless `stop` says that the run is over.
    pub(crate) fn take_absent(&self, stop: &dyn Fn() -> bool) -> Option<Index> {
        self.wait(stop, Rotation::take_absent)
    }

    /// The file taken by [`Self::take_absent`] exists and is open, or could not be made.
    pub(crate) fn created(&self, index: Index, success: bool) {
        let mut rotation = self.rotation();
        rotation.set_present(index, success);
        if success {
            rotation.open(index);
        }
        self.changed.notify_one();
    }

    /// Takes the next file that exists and counts it as open until [`Self::closed`].
    pub(crate) fn take_present(&self, stop: &dyn Fn() -> bool) -> Option<Index> {
        self.wait(stop, Rotation::take_present)
    }

    /// A file that was open no longer is.
    pub(crate) fn closed(&self, index: Index) {
        self.rotation().close(index);
        self.changed.notify_one();
    }

    /// Takes the next file that exists and is not open; the caller deletes it and calls
    /// [`Self::deleted`].
    pub(crate) fn take_idle(&self, stop: &dyn Fn() -> bool) -> Option<Index> {
        self.wait(stop, Rotation::take_idle)
    }

    /// The file taken by [`Self::take_idle`] is gone, or could not be deleted.
    pub(crate) fn deleted(&self, index: Index, success: bool) {
        self.rotation().set_present(index, !success);
        self.changed.notify_one();
    }

    fn wait(
        &self,
        stop: &dyn Fn() -> bool,
        mut pick: impl FnMut(&mut Rotation) -> Option<Index>,
    ) -> Option<Index> {
        let mut rotation = self.rotation();
        loop {
            if let Some(index) = pick(&mut rotation) {
                return Some(index);
            }
            if stop() {
                return None;
            }
            rotation = self
                .changed
                .wait_timeout(rotation, STOP_CHECK)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
    }

    fn rotation(&self) -> MutexGuard<'_, Rotation> {
        // A panic elsewhere leaves the sets consistent: every change is one call.
        self.rotation.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn shuffle(order: &mut [Index], seed: u64) {
    // Another stream than the sizes': which files exist must not depend on how large they are.
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    rng.set_stream(1);
    for last in (1..order.len()).rev() {
        let bound = u64::try_from(last).unwrap_or(u64::MAX).saturating_add(1);
        // The bias of the remainder is below 2^-32 for sets of files.
        let other = usize::try_from(rng.next_u64() % bound).unwrap_or(last);
        order.swap(last, other);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STOPPED: &dyn Fn() -> bool = &|| true;

    fn set(directory: &Path, count: usize) -> FileSet {
        FileSet::open(directory.to_path_buf(), 20, vec![5000; count]).unwrap()
    }

    #[test]
    fn the_share_that_exists_at_the_start_is_prepared() {
        let directory = tempfile::tempdir().unwrap();
        let files = set(directory.path(), 50);
        files.prepare(80, 7, &[1; 4096]).unwrap();
        assert_eq!(files.existing(), 40);
        for index in files.indices() {
            assert_eq!(fs::metadata(files.path(index)).unwrap().len(), 5000);
        }
        // The same set is found again, and is brought back to its share.
        let again = set(directory.path(), 50);
        assert_eq!(again.indices(), files.indices());
        again.prepare(100, 7, &[1; 512]).unwrap();
        assert_eq!(again.existing(), 50);
        again.prepare(80, 7, &[1; 512]).unwrap();
        assert_eq!(set(directory.path(), 50).indices(), files.indices());
    }

    #[test]
    fn files_are_taken_in_rotation_and_open_ones_not_deleted() {
        let directory = tempfile::tempdir().unwrap();
        let files = set(directory.path(), 3);
        files.prepare(100, 1, &[0; 4096]).unwrap();
        let taken: Vec<_> = (0..4).map(|_| files.take_present(STOPPED)).collect();
        assert_eq!(taken, [Some(0), Some(1), Some(2), Some(0)]);
        assert_eq!(files.take_idle(STOPPED), None);
        files.closed(2);
        assert_eq!(files.take_idle(STOPPED), Some(2));
        assert_eq!(files.take_absent(STOPPED), None);
        files.deleted(2, true);
        assert_eq!(files.take_absent(STOPPED), Some(2));
        files.created(2, true);
        assert_eq!(files.existing(), 3);
        assert_eq!(files.take_idle(STOPPED), None);
    }

    #[test]
    fn a_failed_creation_or_deletion_changes_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let files = set(directory.path(), 10);
        files.prepare(80, 1, &[0; 4096]).unwrap();
        let absent = files.take_absent(STOPPED).unwrap();
        files.created(absent, false);
        let idle = files.take_idle(STOPPED).unwrap();
        files.deleted(idle, false);
        assert_eq!(files.existing(), 8);
    }
}
