//! A write of one knob, after its entry in the journal.

use std::time::{Duration, Instant};

use super::journal::{Journal, JournalEntry, JournalError};
use super::lock::KnobStoreError;
use super::put_back;
use super::put_back::{KnobKey, ReadOnly, WriteOutcome, is_of_cgroup, is_read_only};
use super::store::{KnobStore, OwnedKnob};

impl KnobStore {
    /// Records a write in the journal, and writes the knob. While the mount of the cgroups is read-only, one write a second is
    /// tried for all knobs together.
    pub(super) fn write(
        &mut self,
        key: KnobKey,
        owned: OwnedKnob,
    ) -> Result<WriteOutcome, KnobStoreError> {
        if let Some(mount) = self.read_only.as_ref().filter(|_| is_of_cgroup(key.1)) {
            let path = owned.cgroup.full_path().join(key.1.file());
            if let Some(error) = mount.error(&path, Instant::now()) {
                return Err(error.into());
            }
        }
        let Some(journal) = &mut self.journal else {
            return Ok(WriteOutcome::Deferred);
        };
        let noted = journal.append_write(&owned.entry(key));
        self.note_write_error(&noted);
        noted?;
        let before = self.owned.get(&key).map(|before| before.applied.as_str());
        let applied: Vec<&str> = before.into_iter().chain([&*owned.applied]).collect();
        put_back::set(&owned.cgroup, key.1, &owned.original, &applied);
        let written = (self.write_knob)(&owned.cgroup, key.1, &owned.applied);
        self.note_read_only(key, &written);
        let outcome = match written {
            Ok(()) => {
                self.owned.insert(key, owned);
                Ok(WriteOutcome::Written)
            }
            Err(error) => {
                if !self.owned.contains_key(&key) {
                    put_back::remove(&owned.cgroup, key.1);
                    self.append_done(key);
                }
                match error.is_gone() {
                    true => Ok(self.forget(key)),
                    false => Err(error.into()),
                }
            }
        };
        self.compact();
        outcome
    }

    /// Records whether the mount of the cgroups is read-only, and logs when that changes.
    fn note_read_only(&mut self, (_, knob): KnobKey, written: &justitia_kernel::Result<()>) {
        match written {
            Ok(()) if is_of_cgroup(knob) && self.read_only.take().is_some() => {
                tracing::info!("the mount of the cgroups can be written again");
            }
            Err(error) if is_read_only(error, knob) => {
                if self.read_only.is_none() {
                    tracing::warn!(%error, "the mount of the cgroups is read-only: all knobs stay as they are until it can be written");
                }
                self.read_only = Some(ReadOnly::new(error, Instant::now()));
            }
            _ => {}
        }
    }
}

// The journal: entries for each write, and compaction.

/// The time from a failed compaction to the next.
const COMPACTION_RETRY: Duration = Duration::from_secs(1);

impl KnobStore {
    pub(super) fn append_done(&mut self, (id, knob): KnobKey) {
        if let Some(journal) = &mut self.journal
            && let Err(error) = journal.append_done(id.0, knob)
        {
            // The next start finds the original value or another writer's there, and leaves it.
            tracing::debug!(%error, "could not note in the journal that a knob was restored or is external");
        }
    }

    /// Records whether the journal can be written, and logs when that changes.
    pub(super) fn note_write_error(&mut self, noted: &Result<(), JournalError>) {
        match (noted, &self.write_error) {
            (Err(error), None) => {
                tracing::error!(%error, "the knob journal cannot be written: knobs that should change are restored instead");
            }
            (Ok(()), Some(_)) => tracing::info!("the knob journal can be written again"),
            _ => {}
        }
        self.write_error = noted.as_ref().err().map(ToString::to_string);
    }

    /// Compacts the journal once most of its lines are outdated.
    pub(super) fn compact(&mut self) {
        let early = self.compact_after.is_some_and(|at| Instant::now() < at);
        let outdated = |journal: &Journal| journal.needs_compaction(self.owned.len());
        if !early && self.journal.as_ref().is_some_and(outdated) {
            self.compact_now();
        }
    }

    /// Rewrites the journal without outdated lines. If that fails the old one stays in use.
    pub(super) fn compact_now(&mut self) {
        if self.journal.is_none() {
            return;
        }
        let (owned, inherited) = (self.owned.iter(), self.inherited.values().flatten());
        let owned = owned.map(|(key, owned)| owned.entry(*key));
        let entries: Vec<JournalEntry> = owned.chain(inherited.cloned()).collect();
        match Journal::create(&self.path, &entries, &self.unknown) {
            Ok(journal) => {
                self.journal = Some(journal);
                self.compact_after = None;
            }
            Err(error) => {
                tracing::debug!(%error, "the knob journal could not be compacted; it grows until it can be");
                self.compact_after = Some(Instant::now() + COMPACTION_RETRY);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    use justitia_kernel::cgroup::{Cgroup, CgroupFs};
    use justitia_kernel::error::Operation;
    use justitia_kernel::knob::{Knob, write_raw};
    use rustix::io::Errno;

    const KNOB: Knob = Knob::MemoryLow;

    fn store(dir: &Path) -> (KnobStore, Cgroup) {
        let root = dir.join("cgroup");
        std::fs::create_dir_all(root.join("a")).unwrap();
        std::fs::write(root.join("a/memory.low"), "1000\n").unwrap();
        let fs = CgroupFs::open_fixture(&root).unwrap();
        let (store, _) = KnobStore::open(&fs, &dir.join("state")).unwrap();
        (store, Cgroup::open_at(&fs, Path::new("a")).unwrap())
    }

    fn fails(errno: Errno, cgroup: &Cgroup, knob: Knob) -> justitia_kernel::Result<()> {
        Err(justitia_kernel::Error::Io {
            operation: Operation::Write,
            path: cgroup.full_path().join(knob.file()),
            errno,
        })
    }

    fn journal_lines(dir: &Path) -> usize {
        let journal = std::fs::read_to_string(dir.join("state/ledger")).unwrap();
        journal.lines().count()
    }

    #[test]
    fn a_read_only_mount_is_told_and_tried_once_in_a_while() {
        for owned in [false, true] {
            let dir = tempfile::tempdir().unwrap();
            let (mut store, cgroup) = store(dir.path());
            if owned {
                store.set(&cgroup, KNOB, "2000").unwrap();
            }
            store.write_knob = |cgroup, knob, _| fails(Errno::ROFS, cgroup, knob);
            store.set(&cgroup, KNOB, "3000").unwrap_err();
            let lines = journal_lines(dir.path());
            let error = store.set(&cgroup, KNOB, "4000").unwrap_err();
            assert!(error.to_string().contains("Read-only"), "{error}");
            assert_eq!(journal_lines(dir.path()), lines, "owned before: {owned}");
            let why = store.read_only().unwrap();
            assert!(
                why.contains("memory.low") && why.contains("Read-only"),
                "{why}"
            );
            assert!(store.may_write(cgroup.id(), KNOB), "it is tried again");
            // One of the machine is on another mount.
            store.write_knob = write_raw;
            std::fs::write(dir.path().join("cgroup/dirty_background_ratio"), "10").unwrap();
            let machine = store.fs.root().clone();
            let written = store.set(&machine, Knob::DirtyBackground, "19").unwrap();
            assert_eq!(written, WriteOutcome::Written);
            assert!(store.read_only().is_some());
            // As after a second.
            store.read_only = Some(ReadOnly::new(
                &fails(Errno::ROFS, &cgroup, KNOB).unwrap_err(),
                Instant::now()
                    .checked_sub(std::time::Duration::from_secs(2))
                    .unwrap(),
            ));
            store.set(&cgroup, KNOB, "5000").unwrap();
            assert_eq!(store.read_only(), None);
        }
    }

    #[test]
    fn writes_that_fail_do_not_make_the_journal_grow_without_bound() {
        for owned in [false, true] {
            let dir = tempfile::tempdir().unwrap();
            let (mut store, cgroup) = store(dir.path());
            if owned {
                store.set(&cgroup, KNOB, "2000").unwrap();
            }
            store.write_knob = |cgroup, knob, _| fails(Errno::BUSY, cgroup, knob);
            for _ in 0..1500 {
                store.set(&cgroup, KNOB, "3000").unwrap_err();
            }
            assert_eq!(store.applied(cgroup.id(), KNOB).is_some(), owned);
            let lines = journal_lines(dir.path());
            assert!(lines < 1100, "{lines} lines, owned before: {owned}");
        }
    }
}
