//! A set of files: which exist, which is next, and how they come to be.
//!
//! As in Filebench, files are taken in rotation, those that exist by one rotor and those that do
//! not by another; a file that is open is not deleted.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

/// How often someone who waits for a file looks whether the run is over.
const PATIENCE: Duration = Duration::from_millis(50);

/// A file of a set.
pub type Index = u32;

/// The files under one directory.
pub struct FileSet {
    directory: PathBuf,
    width: u32,
    sizes: Vec<u64>,
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    /// Files that exist and are neither being created nor deleted.
    present: BTreeSet<Index>,
    /// Files that do not exist and are not being created.
    absent: BTreeSet<Index>,
    /// How many have each file open.
    opens: Vec<u32>,
    next_present: Index,
    next_absent: Index,
}

impl FileSet {
    /// The set of `sizes.len()` files under `directory`, `width` to a subdirectory. Files that
    /// are there are taken as they are.
    ///
    /// # Errors
    /// The directories cannot be made or a file cannot be looked up.
    pub fn open(directory: PathBuf, width: u32, sizes: Vec<u64>) -> Result<Self> {
        let set = Self {
            directory,
            width: width.max(1),
            state: Mutex::new(State {
                present: BTreeSet::new(),
                absent: BTreeSet::new(),
                opens: vec![0; sizes.len()],
                next_present: 0,
                next_absent: 0,
            }),
            sizes,
            changed: Condvar::new(),
        };
        for index in (0..set.len()).step_by(usize::try_from(set.width)?) {
            let path = set.path(index);
            let parent = path.parent().unwrap_or(&set.directory);
            fs::create_dir_all(parent)
                .with_context(|| format!("make the directory {}", parent.display()))?;
        }
        {
            let mut state = set.state();
            for index in 0..set.len() {
                let path = set.path(index);
                let exists = path
                    .try_exists()
                    .with_context(|| format!("look for {}", path.display()))?;
                let side = if exists {
                    &mut state.present
                } else {
                    &mut state.absent
                };
                side.insert(index);
            }
        }
        Ok(set)
    }

    /// How many files the set can have.
    pub fn len(&self) -> Index {
        Index::try_from(self.sizes.len()).unwrap_or(Index::MAX)
    }

    /// Where the files are.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// How many of them exist.
    pub fn existing(&self) -> usize {
        self.state().present.len()
    }

    /// Those that exist.
    pub fn indices(&self) -> Vec<Index> {
        self.state().present.iter().copied().collect()
    }

    /// The size in bytes with which a file is written.
    pub fn size(&self, index: Index) -> u64 {
        usize::try_from(index)
            .ok()
            .and_then(|i| self.sizes.get(i).copied())
            .unwrap_or(0)
    }

    /// Where a file is.
    pub fn path(&self, index: Index) -> PathBuf {
        self.directory
            .join(format!("{:04}", index / self.width))
            .join(format!("{index:08}"))
    }

    /// Writes files, drawn by `seed`, until `percent` of the set exist, one after the other,
    /// `buffer` at a time; with `sync`, each is made durable. Surplus files are deleted.
    ///
    /// # Errors
    /// A file cannot be written: a set that is not complete is not the workload.
    pub fn prepare(&self, percent: u32, seed: u64, buffer: &[u8], sync: bool) -> Result<()> {
        let wanted = u64::from(self.len()) * u64::from(percent) / 100;
        let mut order: Vec<Index> = (0..self.len()).collect();
        if percent < 100 {
            shuffle(&mut order, seed);
        }
        for (position, index) in (0..).zip(order) {
            let path = self.path(index);
            let exists = self.state().present.contains(&index);
            if position < wanted && !exists {
                write_file(&path, self.size(index), buffer, sync)
                    .with_context(|| format!("write {}", path.display()))?;
            } else if position >= wanted && exists {
                fs::remove_file(&path).with_context(|| format!("delete {}", path.display()))?;
            }
            let mut state = self.state();
            state.present.remove(&index);
            state.absent.remove(&index);
            if position < wanted {
                state.present.insert(index);
            } else {
                state.absent.insert(index);
            }
        }
        Ok(())
    }

    /// Takes the next file that does not exist; the caller creates it and says [`Self::created`].
    /// Waits for one unless `stop` says that it is over.
    pub fn take_absent(&self, stop: &dyn Fn() -> bool) -> Option<Index> {
        self.wait(stop, |state| {
            let index = next(&state.absent, state.next_absent, |_| true)?;
            state.absent.remove(&index);
            state.next_absent = index.wrapping_add(1);
            Some(index)
        })
    }

    /// The file taken by [`Self::take_absent`] exists and is open, or could not be made.
    pub fn created(&self, index: Index, success: bool) {
        let mut state = self.state();
        if success {
            state.present.insert(index);
            if let Some(opens) = state.opens_of(index) {
                *opens += 1;
            }
        } else {
            state.absent.insert(index);
        }
        self.changed.notify_one();
    }

    /// Takes the next file that exists and counts it as open until [`Self::closed`].
    pub fn take_present(&self, stop: &dyn Fn() -> bool) -> Option<Index> {
        self.wait(stop, |state| {
            let index = next(&state.present, state.next_present, |_| true)?;
            state.next_present = index.wrapping_add(1);
            *state.opens_of(index)? += 1;
            Some(index)
        })
    }

    /// A file that was open no longer is.
    pub fn closed(&self, index: Index) {
        if let Some(opens) = self.state().opens_of(index) {
            *opens = opens.saturating_sub(1);
        }
        self.changed.notify_one();
    }

    /// Takes the next file that exists and is not open; the caller deletes it and says
    /// [`Self::deleted`].
    pub fn take_idle(&self, stop: &dyn Fn() -> bool) -> Option<Index> {
        self.wait(stop, |state| {
            let index = next(&state.present, state.next_present, |i| {
                usize::try_from(i).is_ok_and(|i| state.opens.get(i) == Some(&0))
            })?;
            state.present.remove(&index);
            state.next_present = index.wrapping_add(1);
            Some(index)
        })
    }

    /// The file taken by [`Self::take_idle`] is gone, or could not be deleted.
    pub fn deleted(&self, index: Index, success: bool) {
        let mut state = self.state();
        if success {
            state.absent.insert(index);
        } else {
            state.present.insert(index);
        }
        self.changed.notify_one();
    }

    fn wait(
        &self,
        stop: &dyn Fn() -> bool,
        mut pick: impl FnMut(&mut State) -> Option<Index>,
    ) -> Option<Index> {
        let mut state = self.state();
        loop {
            if let Some(index) = pick(&mut state) {
                return Some(index);
            }
            if stop() {
                return None;
            }
            state = self
                .changed
                .wait_timeout(state, PATIENCE)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A panic elsewhere leaves the sets consistent: every change is one call.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
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

/// Writes `size` bytes, `buffer` at a time.
fn write_file(path: &Path, size: u64, buffer: &[u8], sync: bool) -> io::Result<()> {
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .open(path)?;
    let mut offset = 0;
    while offset < size {
        let length = usize::try_from(size - offset)
            .unwrap_or(usize::MAX)
            .min(buffer.len());
        let chunk = buffer.get(..length).unwrap_or(buffer);
        file.write_all_at(chunk, offset)?;
        offset += u64::try_from(chunk.len()).unwrap_or(u64::MAX);
    }
    if sync {
        file.sync_all()?;
    }
    Ok(())
}

/// Reads a file once, `buffer` at a time; the bytes that it had.
///
/// # Errors
/// It cannot be opened or read.
pub fn read_file(path: &Path, buffer: &mut [u8]) -> io::Result<u64> {
    let file = File::open(path)?;
    let mut offset = 0;
    loop {
        match file.read_at(buffer, offset)? {
            0 => return Ok(offset),
            n => offset += u64::try_from(n).unwrap_or(u64::MAX),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GO_ON: &dyn Fn() -> bool = &|| true;

    fn set(directory: &Path, count: usize) -> FileSet {
        FileSet::open(directory.to_path_buf(), 20, vec![5000; count]).unwrap()
    }

    #[test]
    fn prepares_the_share_that_exists_at_the_start() {
        let directory = tempfile::tempdir().unwrap();
        let files = set(directory.path(), 50);
        files.prepare(80, 7, &[1; 4096], true).unwrap();
        assert_eq!(files.existing(), 40);
        for index in files.indices() {
            assert_eq!(fs::metadata(files.path(index)).unwrap().len(), 5000);
        }
        // The same set is found again, and is brought back to its share.
        let again = set(directory.path(), 50);
        assert_eq!(again.indices(), files.indices());
        again.prepare(100, 7, &[1; 512], false).unwrap();
        assert_eq!(again.existing(), 50);
        again.prepare(80, 7, &[1; 512], false).unwrap();
        assert_eq!(set(directory.path(), 50).indices(), files.indices());
    }

    #[test]
    fn rotates_and_does_not_delete_what_is_open() {
        let directory = tempfile::tempdir().unwrap();
        let files = set(directory.path(), 3);
        files.prepare(100, 1, &[0; 4096], false).unwrap();
        let taken: Vec<_> = (0..4).map(|_| files.take_present(GO_ON)).collect();
        assert_eq!(taken, [Some(0), Some(1), Some(2), Some(0)]);
        assert_eq!(files.take_idle(GO_ON), None);
        files.closed(2);
        assert_eq!(files.take_idle(GO_ON), Some(2));
        assert_eq!(files.take_absent(GO_ON), None);
        files.deleted(2, true);
        assert_eq!(files.take_absent(GO_ON), Some(2));
        files.created(2, true);
        assert_eq!(files.existing(), 3);
        assert_eq!(files.take_idle(GO_ON), None);
    }

    #[test]
    fn a_failed_creation_or_deletion_changes_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let files = set(directory.path(), 10);
        files.prepare(80, 1, &[0; 4096], false).unwrap();
        let absent = files.take_absent(GO_ON).unwrap();
        files.created(absent, false);
        let idle = files.take_idle(GO_ON).unwrap();
        files.deleted(idle, false);
        assert_eq!(files.existing(), 8);
    }

    #[test]
    fn reads_what_it_wrote() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        write_file(&path, 10_001, &[3; 4096], false).unwrap();
        assert_eq!(read_file(&path, &mut [0; 1000]).unwrap(), 10_001);
    }
}
