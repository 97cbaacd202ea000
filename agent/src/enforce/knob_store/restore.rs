//! Restores the knobs of a running agent.

use justitia_kernel::cgroup::CgroupId;
use justitia_kernel::knob::Knob;

use super::outcome::{RestoreOutcome, RestoredKnob};
use super::put_back::{KnobKey, by_knob, put_back, restore_entries};
use super::read_only::is_of_cgroup;
use super::store::KnobStore;
use crate::enforce::journal::Journal;

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
            // Somebody has written the default. It need not be restored, and nobody has decided on it.
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

    /// Tries again to restore what could not be restored so far, of this agent and of an earlier one. Returns what was
    /// restored.
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

    /// Restores all knobs, and forgets them. Those that could not be restored stay ours, for another call, and stay in the
    /// journal for the next start.
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
    /// Fail open: however the agent ends, a panic included, the knobs are restored.
    fn drop(&mut self) {
        if self.journal.is_some() {
            self.restore_all();
        }
    }
}
