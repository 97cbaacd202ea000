//! Restores what an agent has left, without starting one.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use justitia_kernel::cgroup::CgroupFs;
use justitia_kernel::knob::Knob;

use super::error::KnobStoreError;
use super::lock::{lock, lock_cgroups};
use super::marks;
use super::outcome::RestoredKnob;
use super::put_back::{preview_entries, restore_entries};
use crate::enforce::journal::{FILE_NAME, Journal, JournalEntry};

/// Where [`reset`] moves a corrupt journal.
const CORRUPT_FILE_NAME: &str = "ledger.corrupt";

/// What [`reset`] has done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResetReport {
    /// The knobs in the journal, and the result of restoring each.
    pub restored: Vec<RestoredKnob>,
    /// What could not be read of the journal.
    pub corruption: Option<Corruption>,
    /// How many records of a newer version stay in the journal.
    pub unknown: usize,
}

/// What a corrupt journal has lost: knobs that only these lines named may still hold our values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Corruption {
    /// How many lines could not be read, at least 1.
    pub lines: usize,
    /// Where the file is now.
    pub moved_to: PathBuf,
}

/// What a killed agent has left, with the locks that keep an agent from starting.
struct Left {
    journal: PathBuf,
    entries: Vec<JournalEntry>,
    unknown: Vec<String>,
    corruption: Option<Corruption>,
    /// `None` if there is no state directory.
    state_lock: Option<File>,
    _cgroups_lock: Option<OwnedFd>,
}

impl Left {
    fn read(fs: &CgroupFs, state: &Path, salvage: bool) -> Result<Self, KnobStoreError> {
        let exists = state.try_exists().map_err(|e| state_error(state, e))?;
        let state_lock = exists.then(|| lock(state)).transpose()?;
        let cgroups_lock = lock_cgroups(fs)?;
        let journal = state.join(FILE_NAME);
        let mut contents = Journal::read(&journal)?;
        let corruption = match contents.corruption {
            Some(error) if !salvage => return Err(error.into()),
            corruption => corruption.map(|_| Corruption {
                lines: contents.corrupt_lines,
                moved_to: state.join(CORRUPT_FILE_NAME),
            }),
        };
        contents.entries.extend(marks::left(fs, &contents.entries));
        Ok(Self {
            journal,
            entries: contents.entries,
            unknown: contents.unknown,
            corruption,
            state_lock,
            _cgroups_lock: cgroups_lock,
        })
    }
}

fn state_error(state: &Path, source: std::io::Error) -> KnobStoreError {
    KnobStoreError::State {
        path: state.to_owned(),
        source,
    }
}

/// Restores what a killed agent has left, by its journal and by the marks of cgroups, without starting one. With `salvage` it also works on a corrupt journal: it
/// restores the knobs whose entries are intact and that still hold our value, and moves the file to `ledger.corrupt`.
///
/// # Errors
/// If an agent runs, or the journal cannot be read, or is corrupt and `salvage` is false: then nothing was changed. If the
/// journal's file cannot be replaced: then its knobs were restored all the same.
pub fn reset(fs: &CgroupFs, state: &Path, salvage: bool) -> Result<ResetReport, KnobStoreError> {
    let left = Left::read(fs, state, salvage)?;
    let path = &left.journal;
    let (restored, failed) = restore_entries(fs, left.entries);
    if let Some(corruption) = &left.corruption {
        std::fs::rename(path, &corruption.moved_to).map_err(|e| state_error(state, e))?;
    }
    if failed.is_empty() && left.unknown.is_empty() {
        match std::fs::remove_file(path) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                return Err(state_error(state, e));
            }
            _ => {}
        }
    } else if left.state_lock.is_some() {
        Journal::create(path, &failed, &left.unknown)?;
    }
    Ok(ResetReport {
        restored,
        corruption: left.corruption,
        unknown: left.unknown.len(),
    })
}

/// What [`reset`] would do; changes nothing. [`RestoreOutcome::Restored`](super::RestoreOutcome::Restored) stands for a
/// knob that it would restore.
///
/// # Errors
/// As of that, before it changes anything.
pub fn preview_reset(
    fs: &CgroupFs,
    state: &Path,
    salvage: bool,
) -> Result<ResetReport, KnobStoreError> {
    let left = Left::read(fs, state, salvage)?;
    Ok(ResetReport {
        restored: preview_entries(fs, left.entries),
        corruption: left.corruption,
        unknown: left.unknown.len(),
    })
}

/// The knobs that throttle (`io.max`, `memory.high`) and `vm.dirty_background_ratio`, of an agent that still holds the
/// journal but cannot act. The journal is not changed: the agent, or the next start, still reads it.
#[derive(Debug)]
pub struct LeftLimits(Vec<JournalEntry>);

impl LeftLimits {
    /// Reads them from the journal in `state`. Corrupt lines are skipped.
    ///
    /// # Errors
    /// If the journal cannot be read.
    pub fn read(state: &Path) -> Result<Self, KnobStoreError> {
        let mut entries = Journal::read(&state.join(FILE_NAME))?.entries;
        entries.retain(|e| {
            matches!(
                e.knob,
                Knob::IoMax(_) | Knob::MemoryHigh | Knob::DirtyBackground
            )
        });
        Ok(Self(entries))
    }

    /// Restores them. Those that cannot be restored stay, for another call.
    pub fn restore(&mut self, fs: &CgroupFs) -> Vec<RestoredKnob> {
        let (restored, failed) = restore_entries(fs, std::mem::take(&mut self.0));
        self.0 = failed;
        restored
    }
}

/// Restores all [`LeftLimits`] of the journal in `state`, once.
///
/// # Errors
/// If the journal cannot be read.
pub fn restore_limits(fs: &CgroupFs, state: &Path) -> Result<Vec<RestoredKnob>, KnobStoreError> {
    Ok(LeftLimits::read(state)?.restore(fs))
}
