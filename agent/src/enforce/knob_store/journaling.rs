//! Keeps the journal of a knob store: what it notes, and when it is compacted.

use std::time::{Duration, Instant};

use super::put_back::KnobKey;
use super::store::KnobStore;
use crate::enforce::journal::{Journal, JournalEntry, JournalError};

/// After a failed compaction the next is tried after this time.
const COMPACTION_RETRY: Duration = Duration::from_secs(1);

impl KnobStore {
    pub(super) fn append_done(&mut self, (id, knob): KnobKey) {
        if let Some(journal) = &mut self.journal
            && let Err(error) = journal.append_done(id.0, knob)
        {
            // The next start finds the original value there, or another writer's, and leaves it.
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
