//! Restores what an agent has left, without starting one.

use std::path::{Path, PathBuf};

use justitia_kernel::cgroup::CgroupFs;
use justitia_kernel::knob::Knob;

use super::error::KnobStoreError;
use super::lock::lock;
use super::outcome::RestoredKnob;
use super::put_back::restore_entries;
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
}

/// What a corrupt journal has lost: knobs that only these lines named may still hold our values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Corruption {
    /// How many lines could not be read, at least 1.
    pub lines: usize,
    /// Where the file is now.
    pub moved_to: PathBuf,
}

/// Restores what a killed agent has left, without starting one. With `salvage` it also works on a corrupt journal: it
/// restores the knobs whose entries are intact and that still hold our value, and moves the file to `ledger.corrupt`.
///
/// # Errors
/// If an agent runs, or the journal cannot be read, or is corrupt and `salvage` is false: then nothing was changed. If the
/// journal's file cannot be replaced: then its knobs were restored all the same.
pub fn reset(fs: &CgroupFs, state: &Path, salvage: bool) -> Result<ResetReport, KnobStoreError> {
    let state_error = |source| KnobStoreError::State {
        path: state.to_owned(),
        source,
    };
    if !state.try_exists().map_err(state_error)? {
        return Ok(ResetReport::default());
    }
    let _lock = lock(state)?;
    let path = state.join(FILE_NAME);
    let contents = Journal::read(&path)?;
    let moved_to = state.join(CORRUPT_FILE_NAME);
    let corruption = match contents.corruption {
        Some(error) if !salvage => return Err(error.into()),
        corruption => corruption.map(|_| Corruption {
            lines: contents.corrupt_lines,
            moved_to: moved_to.clone(),
        }),
    };
    let (restored, failed) = restore_entries(fs, contents.entries);
    if corruption.is_some() {
        std::fs::rename(&path, &moved_to).map_err(state_error)?;
    }
    if failed.is_empty() {
        match std::fs::remove_file(&path) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(state_error(e)),
            _ => {}
        }
    } else {
        Journal::create(&path, &failed)?;
    }
    Ok(ResetReport {
        restored,
        corruption,
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
