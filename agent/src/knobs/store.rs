//! The knob store's state: the knobs that it owns, and those that it leaves to other writers.

use std::collections::HashMap;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Instant;

use justitia_api::escape;
use justitia_kernel::cgroup::{Cgroup, CgroupFs, CgroupId};
use justitia_kernel::knob::{Knob, read_raw, write_raw};

use super::journal::{FILE_NAME, Journal, JournalEntry};
use super::lock::{KnobStoreError, lock, lock_cgroups, lock_reset};
use super::put_back::{
    self, KnobKey, ReadOnly, RestoredKnob, Until, Unwritable, WriteKnob, WriteOutcome, by_knob,
    is_refusal, restore_entries,
};
use super::writers::{ReapplyLimiter, Writers};

/// A knob that the store has written.
#[derive(Debug)]
pub(super) struct OwnedKnob {
    pub(super) cgroup: Cgroup,
    /// The value before our first write.
    pub(super) original: String,
    /// The value of our last write.
    pub(super) applied: String,
    /// A restore is due, and has failed so far.
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

/// All knobs that the agent owns: written by it, and since then neither restored nor found external.
#[derive(Debug)]
pub struct KnobStore {
    pub(super) fs: CgroupFs,
    pub(super) journal: Option<Journal>,
    pub(super) path: PathBuf,
    pub(super) owned: HashMap<KnobKey, OwnedKnob>,
    /// Knobs of an earlier agent that could not be restored yet: all its writes of each knob, in order.
    pub(super) inherited: HashMap<KnobKey, Vec<JournalEntry>>,
    /// Journal records that only a newer version knows. They stay in the journal.
    pub(super) unknown: Vec<String>,
    /// Knobs that are not written any more.
    pub(super) unwritable: HashMap<KnobKey, Unwritable>,
    pub(super) reapplied: HashMap<KnobKey, ReapplyLimiter>,
    /// Values of knobs at their operator's request to take them: see [`KnobStore::is_taken`].
    pub(super) taken: HashMap<KnobKey, String>,
    /// Watches the writers of our knobs.
    pub(super) writers: Writers,
    /// The journal's error, if the last write to it failed.
    pub(super) write_error: Option<String>,
    /// No compaction before this time, since the last one failed.
    pub(super) compact_after: Option<Instant>,
    /// Set while the mount of the cgroups is read-only.
    pub(super) read_only: Option<ReadOnly>,
    /// Writes a knob: [`write_raw`], except in tests of the kernel's errors.
    pub(crate) write_knob: WriteKnob,
    /// The locks that exclude a second agent.
    _locks: (File, Option<OwnedFd>),
}

impl KnobStore {
    /// Opens the journal in the directory `state` (created if missing, readable by its owner only), and restores a killed
    /// agent's knobs, by the journal and by the marks of cgroups. [`KnobStore::retry_restores`] retries failures.
    ///
    /// # Errors
    /// If another agent or a reset runs, or the journal cannot be read or written, or is corrupt.
    pub fn open(fs: &CgroupFs, state: &Path) -> Result<(Self, Vec<RestoredKnob>), KnobStoreError> {
        let locks = (lock(fs, state)?, lock_cgroups(fs)?);
        drop(lock_reset(state)?);
        let path = state.join(FILE_NAME);
        let mut contents = Journal::read(&path)?;
        if let Some(corruption) = contents.corruption {
            return Err(corruption.into());
        }
        contents
            .entries
            .extend(put_back::left(fs, &contents.entries));
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
            taken: HashMap::new(),
            writers: Writers::default(),
            write_error: None,
            compact_after: None,
            read_only: None,
            write_knob: write_raw,
            _locks: locks,
        };
        Ok((store, restored))
    }

    /// Writes `value` to a knob, unless another writer has set it. The first write records the original value. Returns once the
    /// value is in the journal, on disk, and then in the kernel.
    ///
    /// # Errors
    /// If the journal or the knob cannot be written. Then the original value is restored, at once or as soon as the kernel
    /// accepts it ([`KnobStore::retry_restores`]). A knob whose write the kernel refuses is given up
    /// ([`KnobStore::may_write`]); other writes may be retried.
    pub fn set(
        &mut self,
        cgroup: &Cgroup,
        knob: Knob,
        value: &str,
    ) -> Result<WriteOutcome, KnobStoreError> {
        let key = (cgroup.id(), knob);
        match self.unwritable.get(&key) {
            Some(Unwritable::External { found, by, .. }) => {
                return Ok(WriteOutcome::External {
                    applied: String::new(),
                    found: found.clone(),
                    by: by.clone(),
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
            // Disabling a controller for a cgroup drops the values of its knobs.
            Err(e) if e.is_gone() || e.is_missing() => return Ok(self.forget(key)),
            Err(e) => return Err(e.into()),
        };
        let original = match self.owned.get(&key) {
            Some(owned) if owned.applied == found => owned.original.clone(),
            Some(owned) => {
                let applied = owned.applied.clone();
                let author = self.writers.take(key.0, key.1, true).unwrap_or_default();
                if !self.is_ours_again(key, &found, &author, Instant::now()) {
                    let by = author.name;
                    return Ok(WriteOutcome::External { applied, found, by });
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

    /// Checks whether another writer has set a knob of ours. If that was a decision, the knob becomes external. If the writer
    /// only reset the knob, ours is written again, see [`WriteOutcome::Reapplied`]. `None` if the knob holds our value.
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

    /// Whether a knob of ours still holds our value, read now. One that cannot be read counts as holding it.
    #[must_use]
    pub fn stands(&self, id: CgroupId, knob: Knob) -> bool {
        let owned = self.owned.get(&(id, knob));
        owned.is_none_or(|owned| {
            read_raw(&owned.cgroup, knob).map_or(true, |found| found == owned.applied)
        })
    }

    /// As [`KnobStore::audit`], for a knob in which `found` was just read.
    ///
    /// # Errors
    /// As of [`KnobStore::audit`].
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
            self.writers.settle(id, knob);
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

    pub(super) fn forget(&mut self, key: KnobKey) -> WriteOutcome {
        if let Some(owned) = self.owned.remove(&key) {
            put_back::remove(&owned.cgroup, key.1);
            self.append_done(key);
        }
        WriteOutcome::Gone
    }

    /// Leaves a knob of ours to the writer of the new value `found`: until the agent ends, or as long as the value stays.
    pub(super) fn external_from_now(&mut self, key: KnobKey, found: &str) {
        let author = self.writers.take(key.0, key.1, true).unwrap_or_default();
        if self.may_write(key.0, key.1) {
            self.is_ours_again(key, found, &author, Instant::now());
        } else {
            // It was left or given up before it could be restored. It stays so, whichever process writes it.
            self.forget(key);
        }
    }

    /// Leaves a knob to the writer of `found`.
    pub(super) fn leave(&mut self, key: KnobKey, found: &str, by: String, until: Option<Until>) {
        self.note_external(key, found, by, until);
        self.forget(key);
    }

    fn note_external(&mut self, key: KnobKey, found: &str, by: String, until: Option<Until>) {
        let found = found.to_owned();
        self.taken.remove(&key);
        self.unwritable
            .insert(key, Unwritable::External { found, by, until });
    }
}

impl KnobStore {
    /// Whether the knob may be written: it is neither external nor given up.
    #[must_use]
    pub fn may_write(&self, id: CgroupId, knob: Knob) -> bool {
        !self.unwritable.contains_key(&(id, knob))
    }

    /// Whether a knob held `found` at its operator's request to take it ([`KnobStore::take`]). It keeps that value while the
    /// agent does not need the knob, so it is no new decision of another writer.
    #[must_use]
    pub fn is_taken(&self, id: CgroupId, knob: Knob, found: &str) -> bool {
        let taken = self.taken.get(&(id, knob));
        taken.is_some_and(|taken| taken == found)
    }

    /// Whether a knob is the agent's: it has our value, or its operator had the agent take it.
    #[must_use]
    pub fn is_ours(&self, id: CgroupId, knob: Knob) -> bool {
        let key = (id, knob);
        self.owned.contains_key(&key) || self.taken.contains_key(&key)
    }

    /// The value of our last write to a knob.
    #[must_use]
    pub fn applied(&self, id: CgroupId, knob: Knob) -> Option<&str> {
        self.owned.get(&(id, knob)).map(|o| o.applied.as_str())
    }

    /// The owned knobs: cgroup, knob, original value, our value.
    pub fn owned(&self) -> impl Iterator<Item = (CgroupId, Knob, &str, &str)> {
        self.owned
            .iter()
            .map(|((id, knob), o)| (*id, *knob, o.original.as_str(), o.applied.as_str()))
    }

    /// The value before the first write of this or an earlier agent, if `found` is one of that agent's values: the knob could
    /// not be restored yet, and no other writer has chosen its value.
    #[must_use]
    pub fn original_of_left(&self, id: CgroupId, knob: Knob, found: &str) -> Option<&str> {
        let pending = self.owned.get(&(id, knob)).filter(|o| o.restore_pending);
        if let Some(owned) = pending.filter(|owned| owned.applied == found) {
            return Some(&owned.original);
        }
        let writes = self.inherited.get(&(id, knob))?;
        let is_left = writes.iter().any(|write| write.applied == found);
        let first = writes.first().filter(|_| is_left)?;
        Some(&first.original)
    }

    /// The number of owned knobs, with an earlier agent's that could not be restored yet.
    #[must_use]
    pub fn len(&self) -> usize {
        self.owned.len() + self.inherited.len()
    }

    /// Whether no knob is owned.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Why no knob can be written at the moment, if so: a knob is not written without its line in the journal.
    #[must_use]
    pub fn write_error(&self) -> Option<&str> {
        self.write_error.as_deref()
    }

    /// Why no knob can be written at the moment, if the mount of the cgroups is read-only: the error of the last write.
    #[must_use]
    pub fn read_only(&self) -> Option<&str> {
        self.read_only.as_ref().map(ReadOnly::why)
    }

    /// The knobs that are not written any more, and why.
    pub fn unwritable(&self) -> impl Iterator<Item = (CgroupId, Knob, &Unwritable)> {
        self.unwritable
            .iter()
            .map(|((id, knob), why)| (*id, *knob, why))
    }

    /// The knobs of other writers, and the values found there.
    pub fn external(&self) -> impl Iterator<Item = (CgroupId, Knob, &str)> {
        self.unwritable().filter_map(|(id, knob, why)| match why {
            Unwritable::External { found, .. } => Some((id, knob, found.as_str())),
            Unwritable::GivenUp { .. } => None,
        })
    }

    /// The value found in a knob, if it is another writer's.
    #[must_use]
    pub fn found_external(&self, id: CgroupId, knob: Knob) -> Option<&str> {
        match self.unwritable.get(&(id, knob)) {
            Some(Unwritable::External { found, .. }) => Some(found),
            _ => None,
        }
    }

    /// The writer of that value, in words; empty if not known.
    #[must_use]
    pub fn external_by(&self, id: CgroupId, knob: Knob) -> &str {
        match self.unwritable.get(&(id, knob)) {
            Some(Unwritable::External { by, .. }) => by,
            _ => "",
        }
    }

    /// The knobs that were given up, and why.
    pub fn given_up(&self) -> impl Iterator<Item = (CgroupId, Knob, &str)> {
        self.unwritable().filter_map(|(id, knob, why)| match why {
            Unwritable::GivenUp { why } => Some((id, knob, why.as_str())),
            Unwritable::External { .. } => None,
        })
    }

    /// Marks a knob as another writer's, for example because it had a value before our first write. If it is ours, it is
    /// restored first.
    pub fn mark_external(&mut self, id: CgroupId, knob: Knob, found: &str) {
        self.restore(id, knob);
        let by = self.writers.take(id, knob, false).unwrap_or_default().name;
        // A knob that could not be restored yet is not forgotten before it is.
        self.note_external((id, knob), found, by, None);
    }

    /// Allows writes of an external knob. Its operator's value becomes the original, which is restored. Only for values that
    /// keep the operator's guarantees.
    pub fn take_over(&mut self, id: CgroupId, knob: Knob) {
        let key = (id, knob);
        if let Some(Unwritable::External { .. }) = self.unwritable.get(&key) {
            self.unwritable.remove(&key);
        }
    }

    /// Restores a knob, and does not write it any more. A knob that turns out to be external stays external.
    pub fn give_up(&mut self, id: CgroupId, knob: Knob, why: &str) {
        self.restore(id, knob);
        let why = why.to_owned();
        self.unwritable
            .entry((id, knob))
            .or_insert(Unwritable::GivenUp { why });
    }

    /// Forgets that a knob is external or given up, in all cgroups: for example because its device, and so its values, are
    /// gone.
    pub fn forget_unwritable(&mut self, knob: Knob) {
        self.unwritable.retain(|(_, other), _| *other != knob);
        self.reapplied.retain(|(_, other), _| *other != knob);
        self.taken.retain(|(_, other), _| *other != knob);
    }

    /// Restores and forgets the knobs of a cgroup that was removed, or that exists and is no tenant any more.
    pub fn on_cgroup_removed(&mut self, id: CgroupId) {
        let keys = self.owned.keys().filter(|(of, _)| *of == id);
        for (id, knob) in keys.copied().collect::<Vec<KnobKey>>() {
            self.restore(id, knob);
        }
        self.unwritable.retain(|(of, _), _| *of != id);
        self.reapplied.retain(|(of, _), _| *of != id);
        self.taken.retain(|(of, _), _| *of != id);
        self.writers.forget(id);
    }
}
