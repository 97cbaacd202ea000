//! Restores knobs: when an agent ends, for `justitia reset`, and for the watchdog.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use justitia_kernel::cgroup::{CgroupFs, CgroupId};
use justitia_kernel::knob::Knob;

use super::journal::{FILE_NAME, Journal, JournalEntry};
use super::lock::{KnobStoreError, lock, lock_cgroups, lock_reset};
use super::put_back::{
    self, KnobKey, RestoreOutcome, RestoredKnob, by_knob, is_of_cgroup, preview_entries, put_back,
    restore_entries,
};
use super::store::KnobStore;

/// The time between two tries to restore the knobs at the end.
const RETRY: Duration = Duration::from_millis(100);

impl KnobStore {
    /// Restores one knob now, unless another writer has set it. `None` if it is not ours, or its cgroup was removed. If the
    /// kernel refuses, it stays ours, and [`KnobStore::retry_restores`] tries again.
    pub fn restore(&mut self, id: CgroupId, knob: Knob) -> Option<RestoreOutcome> {
        let key = (id, knob);
        let owned = self.owned.get_mut(&key)?;
        let outcome = put_back(
            &owned.cgroup,
            knob,
            &owned.original,
            &[&owned.applied],
            self.write_knob,
        );
        match &outcome {
            RestoreOutcome::Restored => {
                if is_of_cgroup(knob) {
                    self.read_only = None;
                }
                self.forget(key);
            }
            // Another process has written the default: nothing remains to be restored, and no writer has chosen the value.
            RestoreOutcome::External { found } if knob.is_default(found) => {
                self.forget(key);
            }
            RestoreOutcome::External { found } => self.external_from_now(key, found),
            RestoreOutcome::Gone => {
                self.forget(key);
                return None;
            }
            RestoreOutcome::Failed { error } => {
                if !std::mem::replace(&mut owned.restore_pending, true) {
                    tracing::warn!(cgroup = id.0, %knob, error, "could not be restored yet; it is tried again");
                }
            }
        }
        Some(outcome)
    }

    /// As [`KnobStore::restore`], with the knob in the result.
    fn restore_owned(&mut self, key: KnobKey) -> Option<RestoredKnob> {
        let entry = self.owned.get(&key)?.entry(key);
        let outcome = self.restore(key.0, key.1).unwrap_or(RestoreOutcome::Gone);
        Some(RestoredKnob::new(&entry, outcome))
    }

    /// Retries the failed restores of this agent and of an earlier one. Returns the results.
    pub fn retry_restores(&mut self) -> Vec<RestoredKnob> {
        let mut restored = Vec::new();
        let pending: Vec<KnobKey> = self
            .owned
            .iter()
            .filter(|(_, owned)| owned.restore_pending)
            .map(|(key, _)| *key)
            .collect();
        for key in pending {
            restored.extend(self.restore_owned(key));
        }
        if !self.inherited.is_empty() {
            let entries = self
                .inherited
                .drain()
                .flat_map(|(_, entries)| entries)
                .collect();
            let (tried, failed) = restore_entries(&self.fs, entries);
            self.inherited = by_knob(failed);
            restored.extend(tried);
            self.compact_now();
        }
        restored.retain(|one| !one.outcome.is_failed());
        restored
    }

    /// As [`KnobStore::restore_all`], and retries for at most `timeout`. Returns each knob with its last result.
    pub fn restore_all_within(&mut self, timeout: Duration) -> Vec<RestoredKnob> {
        let begun = Instant::now();
        let mut restored = self.restore_all();
        while !self.is_empty() && begun.elapsed() < timeout {
            std::thread::sleep(RETRY);
            restored.retain(|one| !one.outcome.is_failed());
            restored.extend(self.restore_all());
        }
        restored
    }

    /// Restores all knobs, and forgets them. Those whose restore fails stay ours, for another call, and stay in the journal for
    /// the next start.
    pub fn restore_all(&mut self) -> Vec<RestoredKnob> {
        let mut restored = Vec::new();
        for key in self.owned.keys().copied().collect::<Vec<KnobKey>>() {
            restored.extend(self.restore_owned(key));
        }
        restored.extend(self.retry_restores());
        if !self.is_empty() {
            return restored;
        }
        if !self.unknown.is_empty() {
            self.compact_now();
            self.journal = None;
        }
        if let Some(Err(error)) = self.journal.take().map(Journal::remove) {
            tracing::warn!(%error, "the knob journal was not removed; its knobs are restored all the same");
        }
        restored
    }
}

impl Drop for KnobStore {
    /// Fail open: however the agent ends, even by a panic, the knobs are restored.
    fn drop(&mut self) {
        if self.journal.is_some() {
            self.restore_all();
        }
    }
}

// Restores an earlier agent's knobs without starting an agent.

/// The name that [`reset`] gives to a corrupt journal.
const CORRUPT_FILE_NAME: &str = "ledger.corrupt";

/// The result of [`reset`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResetReport {
    /// The knobs in the journal, and the result of restoring each.
    pub restored: Vec<RestoredKnob>,
    /// The unreadable part of the journal.
    pub corruption: Option<Corruption>,
    /// The number of records of a newer version that stay in the journal.
    pub unknown: usize,
}

/// A corrupt journal: knobs that only the corrupt lines named may still hold our values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Corruption {
    /// The number of unreadable lines, at least 1.
    pub lines: usize,
    /// The file's path now.
    pub file: PathBuf,
    /// Whether it was not moved, because a killed agent has not ended. No agent starts with it.
    pub stays: bool,
}

/// A killed agent's journal, with the locks that keep an agent from starting. If the killed agent has not ended, it holds the
/// first lock of its state directory; the second one keeps an agent from starting when it ends.
struct Left {
    journal: PathBuf,
    entries: Vec<JournalEntry>,
    unknown: Vec<String>,
    corruption: Option<Corruption>,
    /// `None` if there is no state directory.
    state_lock: Option<File>,
    /// Held if the killed agent holds `state_lock`.
    _reset_lock: Option<File>,
    _cgroups_lock: Option<OwnedFd>,
    /// Whether the killed agent has not ended. When it ends, another agent may take over the journal, so it is not changed.
    holds_on: bool,
}

/// The lock; `None` if a killed agent holds it, whose error is then in `holder`.
fn unless_killed<T>(
    locked: Result<Option<T>, KnobStoreError>,
    holder: &mut Option<KnobStoreError>,
) -> Result<Option<T>, KnobStoreError> {
    match locked {
        Err(error @ KnobStoreError::Killed { .. }) => {
            *holder = Some(error);
            Ok(None)
        }
        locked => locked,
    }
}

impl Left {
    fn read(fs: &CgroupFs, state: &Path, salvage: bool) -> Result<Self, KnobStoreError> {
        let exists = state.try_exists().map_err(|e| state_error(state, e))?;
        let mut holder = None;
        let lock_state =
            |holder: &mut _| unless_killed(exists.then(|| lock(fs, state)).transpose(), holder);
        let mut state_lock = lock_state(&mut holder)?;
        let reset_lock = holder.take().map(|_| lock_reset(state)).transpose()?;
        if reset_lock.is_some() {
            // The killed agent may have ended, and another started, before we got the second lock.
            state_lock = lock_state(&mut holder)?;
        }
        let cgroups_lock = unless_killed(lock_cgroups(fs), &mut holder)?;
        if let Some(holder) = &holder {
            tracing::warn!("{holder}");
        }
        let holds_on = holder.is_some();
        let journal = state.join(FILE_NAME);
        let mut contents = Journal::read(&journal)?;
        let corruption = match contents.corruption {
            Some(error) if !salvage => return Err(error.into()),
            corruption => corruption.map(|_| Corruption {
                lines: contents.corrupt_lines,
                file: state.join(if holds_on {
                    FILE_NAME
                } else {
                    CORRUPT_FILE_NAME
                }),
                stays: holds_on,
            }),
        };
        contents
            .entries
            .extend(put_back::left(fs, &contents.entries));
        Ok(Self {
            journal,
            entries: contents.entries,
            unknown: contents.unknown,
            corruption,
            state_lock,
            _reset_lock: reset_lock,
            _cgroups_lock: cgroups_lock,
            holds_on,
        })
    }
}

fn state_error(state: &Path, source: std::io::Error) -> KnobStoreError {
    KnobStoreError::State {
        path: state.to_owned(),
        source,
    }
}

/// Restores a killed agent's knobs, by its journal and by the marks of cgroups, without starting an agent. With `salvage` it
/// accepts a corrupt journal: it restores the knobs whose entries are intact and that still hold our value, and moves the file
/// to `ledger.corrupt`. While a killed agent has not ended, its journal stays, for the next start.
///
/// # Errors
/// If an agent runs, or the journal cannot be read, or is corrupt without `salvage`: then nothing was changed. If the journal's
/// file cannot be replaced: then its knobs were restored all the same.
pub fn reset(fs: &CgroupFs, state: &Path, salvage: bool) -> Result<ResetReport, KnobStoreError> {
    let left = Left::read(fs, state, salvage)?;
    let (restored, failed) = restore_entries(fs, left.entries);
    if !left.holds_on {
        if let Some(corruption) = &left.corruption {
            std::fs::rename(&left.journal, &corruption.file).map_err(|e| state_error(state, e))?;
        }
        if failed.is_empty() && left.unknown.is_empty() {
            match std::fs::remove_file(&left.journal) {
                Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                    return Err(state_error(state, e));
                }
                _ => {}
            }
        } else if left.state_lock.is_some() {
            Journal::create(&left.journal, &failed, &left.unknown)?;
        }
    }
    Ok(ResetReport {
        restored,
        corruption: left.corruption,
        unknown: left.unknown.len(),
    })
}

/// The results that [`reset`] would have; changes nothing. [`RestoreOutcome::Restored`](super::RestoreOutcome::Restored) stands
/// for a knob that it would restore.
///
/// # Errors
/// Those of [`reset`] before its first change.
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

/// The knobs that throttle (`memory.high`), corrected weights and those of the machine, of an agent that still holds the
/// journal but cannot act. The journal is not changed: the agent or the next start still reads it.
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
                Knob::IoWeightOn(_)
                    | Knob::IoBfqWeightOn(_)
                    | Knob::IoCostQos(_)
                    | Knob::IoCostModel(_)
                    | Knob::MemoryHigh
                    | Knob::DirtyBackground
                    | Knob::VfsCachePressure
            )
        });
        Ok(Self(entries))
    }

    /// Restores them. Those whose restore fails stay, for another call.
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
