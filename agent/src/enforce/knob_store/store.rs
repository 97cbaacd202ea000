//! Writes knobs. Those that another writer has set are external: they are not written again.

use std::collections::HashMap;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Instant;

use justitia_kernel::cgroup::{Cgroup, CgroupFs, CgroupId};
use justitia_kernel::knob::{Knob, read_raw, write_raw};

use super::error::KnobStoreError;
use super::lock::{lock, lock_cgroups};
use super::marks;
use super::outcome::{RestoredKnob, Unwritable, WriteOutcome};
use super::put_back::{KnobKey, WriteKnob, by_knob, is_refusal, restore_entries};
use super::read_only::ReadOnly;
use super::reapply::ReapplyLimiter;
use crate::enforce::journal::{FILE_NAME, Journal, JournalEntry};
use crate::escape;

/// A knob that the store has written.
#[derive(Debug)]
pub(super) struct OwnedKnob {
    pub(super) cgroup: Cgroup,
    /// The value before our first write.
    pub(super) original: String,
    /// The value of our last write.
    pub(super) applied: String,
    /// It has to be restored, which has failed so far.
    pub(super) restore_pending: bool,
}

impl OwnedKnob {
    /// Its entry in the journal.
    pub(super) fn entry(&self, (id, knob): KnobKey) -> JournalEntry {
        JournalEntry {
            cgroup: id.0,
            path: escape::encode(self.cgroup.path().as_os_str()),
            knob,
            original: self.original.clone(),
            applied: self.applied.clone(),
        }
    }
}

/// All knobs that the agent owns: those that it has written and neither restored nor found external since.
#[derive(Debug)]
pub struct KnobStore {
    pub(super) fs: CgroupFs,
    pub(super) journal: Option<Journal>,
    pub(super) path: PathBuf,
    pub(super) owned: HashMap<KnobKey, OwnedKnob>,
    /// Knobs of an earlier agent that could not be restored yet: all its writes of each knob, in order.
    pub(super) inherited: HashMap<KnobKey, Vec<JournalEntry>>,
    /// Records of the journal that only a newer version knows. They stay in it.
    pub(super) unknown: Vec<String>,
    /// Knobs that are not written any more.
    pub(super) unwritable: HashMap<KnobKey, Unwritable>,
    pub(super) reapplied: HashMap<KnobKey, ReapplyLimiter>,
    /// The journal's error, if the last write to it failed.
    pub(super) write_error: Option<String>,
    /// No compaction before this time, since the last one failed.
    pub(super) compact_after: Option<Instant>,
    /// The mount of the cgroups is read-only.
    pub(super) read_only: Option<ReadOnly>,
    /// Writes a knob: [`write_raw`], but in tests of what the kernel may answer.
    pub(in crate::enforce) write_knob: WriteKnob,
    /// Hold the locks that exclude a second agent.
    _locks: (File, Option<OwnedFd>),
}

impl KnobStore {
    /// Opens the journal in the directory `state` (created if missing, readable by its owner only), and restores what a
    /// killed agent has left, by the journal and by the marks of cgroups. What fails of that is kept for
    /// [`KnobStore::retry_restores`].
    ///
    /// # Errors
    /// If another agent runs, or the journal cannot be read or written, or is corrupt.
    pub fn open(fs: &CgroupFs, state: &Path) -> Result<(Self, Vec<RestoredKnob>), KnobStoreError> {
        let locks = (lock(state)?, lock_cgroups(fs)?);
        let path = state.join(FILE_NAME);
        let mut contents = Journal::read(&path)?;
        if let Some(corruption) = contents.corruption {
            return Err(corruption.into());
        }
        contents.entries.extend(marks::left(fs, &contents.entries));
        let (restored, failed) = restore_entries(fs, contents.entries);
        let journal = Journal::create(&path, &failed, &contents.unknown)?;
        if !contents.unknown.is_empty() {
            tracing::warn!(
                records = contents.unknown.len(),
                journal = %path.display(),
                "the knob journal has records of a newer version, which are kept: its `justitia reset` restores their knobs"
            );
        }
        let store = Self {
            fs: fs.clone(),
            journal: Some(journal),
            path,
            owned: HashMap::new(),
            inherited: by_knob(failed),
            unknown: contents.unknown,
            unwritable: HashMap::new(),
            reapplied: HashMap::new(),
            write_error: None,
            compact_after: None,
            read_only: None,
            write_knob: write_raw,
            _locks: locks,
        };
        Ok((store, restored))
    }

    /// Writes `value` to a knob, unless another writer has set it. The first write records the original value. Returns once
    /// the value is in the journal, on disk, and then in the kernel.
    ///
    /// # Errors
    /// If the journal or the knob cannot be written. Then the original value is restored, at once or as soon as the kernel
    /// accepts it ([`KnobStore::retry_restores`]). A knob whose write the kernel refuses is given up
    /// ([`KnobStore::may_write`]); the write of any other may be tried again.
    pub fn set(
        &mut self,
        cgroup: &Cgroup,
        knob: Knob,
        value: &str,
    ) -> Result<WriteOutcome, KnobStoreError> {
        let key = (cgroup.id(), knob);
        match self.unwritable.get(&key) {
            Some(Unwritable::External { found }) => {
                return Ok(WriteOutcome::External {
                    applied: String::new(),
                    found: found.clone(),
                });
            }
            Some(Unwritable::GivenUp { .. }) => return Ok(WriteOutcome::GivenUp),
            None => {}
        }
        let written = self.try_set(cgroup, knob, value);
        if let Err(error) = &written {
            match error {
                KnobStoreError::Kernel(error) if is_refusal(error, knob) => {
                    self.give_up(
                        key.0,
                        knob,
                        &format!("the kernel refused the write: {error}"),
                    );
                }
                _ => {
                    self.restore(key.0, knob);
                }
            }
        }
        written
    }

    fn try_set(
        &mut self,
        cgroup: &Cgroup,
        knob: Knob,
        value: &str,
    ) -> Result<WriteOutcome, KnobStoreError> {
        let key = (cgroup.id(), knob);
        if self.inherited.contains_key(&key) {
            self.retry_restores();
            if self.inherited.contains_key(&key) {
                return Ok(WriteOutcome::Deferred);
            }
        }
        let found = match read_raw(cgroup, knob) {
            Ok(found) => found,
            // When a controller is disabled for a cgroup, the values of its knobs are dropped.
            Err(e) if e.is_gone() || e.is_missing() => return Ok(self.forget(key)),
            Err(e) => return Err(e.into()),
        };
        let original = match self.owned.get(&key) {
            Some(owned) if owned.applied == found => owned.original.clone(),
            Some(owned) => {
                let applied = owned.applied.clone();
                if !self.may_reapply(key, &found) {
                    self.external_from_now(key, &found);
                    return Ok(WriteOutcome::External { applied, found });
                }
                self.forget(key);
                found.clone()
            }
            None => found.clone(),
        };
        if found == value {
            if let Some(owned) = self.owned.get_mut(&key) {
                owned.restore_pending = false;
            }
            return Ok(WriteOutcome::Unchanged);
        }
        let owned = OwnedKnob {
            cgroup: cgroup.clone(),
            original,
            applied: value.to_owned(),
            restore_pending: false,
        };
        self.write(key, owned)
    }

    /// Checks whether another writer has set a knob of ours. If it has decided on a value, the knob is external; if it has
    /// only reapplied one, ours is written again, see [`WriteOutcome::Reapplied`]. `None` if the knob holds our value.
    ///
    /// # Errors
    /// If our value cannot be written again: then the knob is not ours any more, as after [`KnobStore::set`].
    pub fn audit(
        &mut self,
        id: CgroupId,
        knob: Knob,
    ) -> Result<Option<WriteOutcome>, KnobStoreError> {
        let owned = self.owned.get(&(id, knob));
        match owned.map(|owned| read_raw(&owned.cgroup, knob)) {
            Some(Ok(found)) => self.audit_value(id, knob, &found),
            _ => Ok(None),
        }
    }

    /// As [`KnobStore::audit`], of a knob in which `found` was just read.
    ///
    /// # Errors
    /// As of that.
    pub fn audit_value(
        &mut self,
        id: CgroupId,
        knob: Knob,
        found: &str,
    ) -> Result<Option<WriteOutcome>, KnobStoreError> {
        let key = (id, knob);
        let Some(owned) = self.owned.get(&key).filter(|owned| !owned.restore_pending) else {
            return Ok(None);
        };
        if found == owned.applied {
            return Ok(None);
        }
        let (cgroup, applied) = (owned.cgroup.clone(), owned.applied.clone());
        let written = self.set(&cgroup, knob, &applied)?;
        Ok(Some(match written {
            WriteOutcome::Written | WriteOutcome::Unchanged => WriteOutcome::Reapplied {
                found: found.to_owned(),
            },
            other => other,
        }))
    }

    /// Whether nobody has decided on `found`, and our value may be written over it once more.
    fn may_reapply(&mut self, key: KnobKey, found: &str) -> bool {
        let original = self.owned.get(&key).map(|owned| owned.original.as_str());
        (original == Some(found) || key.1.is_default(found))
            && self.reapplied.entry(key).or_default().allow(Instant::now())
    }

    pub(super) fn forget(&mut self, key: KnobKey) -> WriteOutcome {
        if let Some(owned) = self.owned.remove(&key) {
            marks::remove(&owned.cgroup, key.1);
            self.append_done(key);
        }
        WriteOutcome::Gone
    }

    /// Leaves a knob of ours to the writer of `found`.
    pub(super) fn external_from_now(&mut self, key: KnobKey, found: &str) {
        let found = found.to_owned();
        self.unwritable.insert(key, Unwritable::External { found });
        self.forget(key);
    }
}
