//! Knobs that are left to other writers, and knobs that become ours again: applies the table of [`writers`](super::writers) and
//! operators' requests.

use std::time::Instant;

use justitia_api::escape;
use justitia_kernel::cgroup::{Cgroup, CgroupId};
use justitia_kernel::knob::{Knob, read_raw};

use super::lock::KnobStoreError;
use super::put_back::{KnobKey, Until, Unwritable, WriteOutcome};
use super::store::{KnobStore, OwnedKnob};
use super::writers::{Author, AuthorKind, Value, Verdict, decide};

#[cfg(test)]
mod tests;

impl Default for Author {
    /// An unknown writer.
    fn default() -> Self {
        Self {
            kind: AuthorKind::Unknown,
            name: String::new(),
        }
    }
}

/// A knob that was left to systemd or the kubelet, and is ours again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TakenBack {
    /// Its cgroup.
    pub id: CgroupId,
    /// The knob.
    pub knob: Knob,
    /// Its operator's value: the one before our first write, or the kernel's default.
    pub value: String,
    /// The value that was found.
    pub found: String,
    /// The writer that reset it, in words; empty if not known.
    pub by: String,
}

impl KnobStore {
    /// Starts watching writes to our knobs.
    ///
    /// # Errors
    /// The kernel's refusal. Then the value alone decides.
    pub fn watch_writers(&mut self) -> justitia_kernel::Result<()> {
        self.writers.start()
    }

    /// As [`KnobStore::set`], and watches other writers of the knob from before our first write. Not for knobs in a delegatee's
    /// cgroups: it could fill the kernel's queue.
    ///
    /// # Errors
    /// As of [`KnobStore::set`].
    pub fn hold(
        &mut self,
        cgroup: &Cgroup,
        knob: Knob,
        value: &str,
    ) -> Result<WriteOutcome, KnobStoreError> {
        if self.applied(cgroup.id(), knob).is_none() {
            self.writers.watch(cgroup, knob);
        }
        self.set(cgroup, knob, value)
    }

    /// Reads the reported writes to our knobs. Once a tick.
    pub fn note_writers(&mut self) {
        self.writers.drain();
    }

    /// Whether a knob of ours in which `author` wrote `found` is ours again. If not, it is left to that writer.
    pub(super) fn is_ours_again(
        &mut self,
        key: KnobKey,
        found: &str,
        author: &Author,
        now: Instant,
    ) -> bool {
        let Some(owned) = self.owned.get(&key) else {
            return false;
        };
        let until = Until {
            original: owned.original.clone(),
            applied: owned.applied.clone(),
            paused: false,
        };
        let cgroup = owned.cgroup.clone();
        self.is_to_be_written(&cgroup, key, found, author, until, now)
    }

    /// The same for a knob whose known values are in `until`.
    fn is_to_be_written(
        &mut self,
        cgroup: &Cgroup,
        key: KnobKey,
        found: &str,
        author: &Author,
        mut until: Until,
        now: Instant,
    ) -> bool {
        let verdict = decide(author.kind, value(key.1, found, &until));
        let (tenant, knob) = (escape::encode(cgroup.path().as_os_str()), key.1);
        let by = author.name.as_str();
        if self.is_allowed(key, verdict, now) {
            tracing::debug!(tenant, %knob, found, by, "the original value was reapplied: written again");
            return true;
        }
        if let Verdict::Again(limit) | Verdict::AgainUntil(limit) = verdict {
            let (times, seconds) = (limit.times, limit.within.as_secs());
            tracing::info!(tenant, %knob, found, by, times, seconds, "reapplied too often: it is left as it is");
        }
        until.paused = matches!(verdict, Verdict::Again(_));
        let until = matches!(verdict, Verdict::Again(_) | Verdict::Policy).then_some(until);
        self.leave(key, found, author.name.clone(), until);
        false
    }

    /// Watches writes to a knob that is not ours yet; see [`KnobStore::hold`].
    pub fn watch(&mut self, cgroup: &Cgroup, knob: Knob) {
        self.writers.watch(cgroup, knob);
    }

    /// Writes a knob's declared value over a different one, unless the writer of the latter decides against it. The table is
    /// that of our knobs; the declared value and the kernel's default are the known ones. `watched`: whether
    /// [`KnobStore::watch`] was called before that write; else its writer is unknown.
    ///
    /// # Errors
    /// As of [`KnobStore::set`].
    pub fn put_declared(
        &mut self,
        cgroup: &Cgroup,
        knob: Knob,
        declared: &str,
        watched: bool,
        now: Instant,
    ) -> Result<WriteOutcome, KnobStoreError> {
        let key = (cgroup.id(), knob);
        if self.owned.contains_key(&key) || self.unwritable.contains_key(&key) {
            return self.set(cgroup, knob, declared);
        }
        let found = match read_raw(cgroup, knob) {
            Ok(found) => found,
            Err(error) if error.is_gone() || error.is_missing() => return Ok(WriteOutcome::Gone),
            Err(error) => return Err(error.into()),
        };
        if found == declared {
            return Ok(WriteOutcome::Unchanged);
        }
        if self.is_taken(key.0, knob, &found) {
            return self.set(cgroup, knob, declared);
        }
        let author = self.writers.take(key.0, knob, watched).unwrap_or_default();
        let until = Until {
            original: declared.to_owned(),
            applied: declared.to_owned(),
            paused: false,
        };
        if self.is_to_be_written(cgroup, key, &found, &author, until, now) {
            return self.set(cgroup, knob, declared);
        }
        let (applied, by) = (String::new(), author.name);
        Ok(WriteOutcome::External { applied, found, by })
    }

    /// A knob of ours holds our value: earlier writes have changed nothing.
    pub fn settle(&mut self, id: CgroupId, knob: Knob) {
        self.writers.settle(id, knob);
    }

    /// A knob holds its declared value: it is not external any more, unless its operator has released it.
    pub fn settle_declared(&mut self, id: CgroupId, knob: Knob) {
        self.writers.settle(id, knob);
        if self.external_by(id, knob) != OPERATOR {
            self.take_over(id, knob);
        }
    }

    /// Whether a verdict makes a knob ours again now; if so, counts it.
    fn is_allowed(&mut self, key: KnobKey, verdict: Verdict, now: Instant) -> bool {
        match verdict {
            Verdict::Again(limit) | Verdict::AgainUntil(limit) => {
                self.reapplied.entry(key).or_default().allow(limit, now)
            }
            Verdict::Policy | Verdict::Yield => false,
        }
    }

    /// Checks the knobs that are left to systemd or the kubelet. Those that were reset, and those whose pause has ended, are
    /// ours again. `cgroup` finds the cgroup of an id.
    pub fn take_back<'a>(
        &mut self,
        cgroup: impl Fn(CgroupId) -> Option<&'a Cgroup>,
        now: Instant,
    ) -> Vec<TakenBack> {
        let left = self.unwritable.iter().filter_map(|(key, why)| match why {
            Unwritable::External {
                found,
                until: Some(until),
                ..
            } => Some((*key, found.clone(), until.clone())),
            _ => None,
        });
        let left: Vec<(KnobKey, String, Until)> = left.collect();
        let mut back = Vec::new();
        for (key, before, until) in left {
            // A knob that cannot be read now is checked again later.
            let found = cgroup(key.0).map(|cgroup| (cgroup, read_raw(cgroup, key.1)));
            if let Some((cgroup, Ok(found))) = found {
                back.extend(self.judge_left(cgroup, key, &before, found, until, now));
            }
        }
        back
    }

    /// Judges a knob that was left with the value `before`.
    fn judge_left(
        &mut self,
        cgroup: &Cgroup,
        key: KnobKey,
        before: &str,
        found: String,
        mut until: Until,
        now: Instant,
    ) -> Option<TakenBack> {
        let (id, knob) = key;
        let author = self.writers.take(id, knob, found != before);
        if author.is_none() && found == before && !until.paused {
            return None;
        }
        // A paused knob was left to a manager, and has not been written since.
        let author = author.unwrap_or(Author {
            kind: match found == before {
                true => AuthorKind::Manager,
                false => AuthorKind::Unknown,
            },
            name: String::new(),
        });
        let verdict = decide(author.kind, value(knob, &found, &until));
        let by = author.name;
        if self.is_allowed(key, verdict, now) {
            self.unwritable.remove(&key);
            let value = match found == until.applied {
                true => until.original,
                false => found.clone(),
            };
            // A declared weight is not planned anew each second: its value is judged once, here.
            let is_declared = matches!(knob, Knob::IoWeight | Knob::IoBfqWeight);
            if found == until.applied || is_declared {
                self.own(cgroup, key, value.clone(), until.applied);
            }
            // The part of the agent that needs any other knob writes it anew, and alone restores it.
            if !is_declared {
                self.restore(id, knob);
            }
            return Some(TakenBack {
                id,
                knob,
                value,
                found,
                by,
            });
        }
        until.paused = matches!(verdict, Verdict::Again(_));
        let stays = matches!(verdict, Verdict::Again(_) | Verdict::Policy);
        // Without a new name the earlier one stays.
        let by = match by.is_empty() {
            true => self.external_by(id, knob).to_owned(),
            false => by,
        };
        self.leave(key, &found, by, stays.then_some(until));
        None
    }

    /// Owns a knob with our value: records and writes it.
    fn own(&mut self, cgroup: &Cgroup, key: KnobKey, original: String, applied: String) {
        let owned = OwnedKnob {
            cgroup: cgroup.clone(),
            original,
            applied,
            restore_pending: false,
        };
        if let Err(error) = self.write(key, owned) {
            tracing::debug!(knob = %key.1, %error, "could not be written again");
        }
    }

    /// Restores a knob at its operator's request, and does not write it any more. Returns its value. A failed restore is
    /// retried.
    ///
    /// # Errors
    /// If it cannot be read: then the agent may write it again.
    pub fn release(&mut self, cgroup: &Cgroup, knob: Knob) -> justitia_kernel::Result<String> {
        let id = cgroup.id();
        self.restore(id, knob);
        let found = read_raw(cgroup, knob)?;
        let key = (id, knob);
        self.writers.settle(id, knob);
        // A failed restore is still retried.
        let pending = self.owned.remove(&key);
        self.leave(key, &found, OPERATOR.to_owned(), None);
        if let Some(pending) = pending {
            self.owned.insert(key, pending);
        }
        Ok(found)
    }

    /// Takes a knob at its operator's request: one that was left to another writer, given up, or holds another's value that we
    /// have not seen yet. Its value stays until we need the knob, and is restored when we do not need it any more. A
    /// `memory.low` is needed at once, and planned from the kernel's default. Returns whether the knob was not ours to write.
    ///
    /// # Errors
    /// If it cannot be read, or a `memory.low` cannot be written.
    pub fn take(&mut self, cgroup: &Cgroup, knob: Knob) -> Result<bool, KnobStoreError> {
        let (id, key) = (cgroup.id(), (cgroup.id(), knob));
        let found = read_raw(cgroup, knob)?;
        let is_left = self.unwritable.remove(&key).is_some();
        let is_ours = self.owned.contains_key(&key) || self.is_taken(id, knob, &found);
        if !is_left && (is_ours || knob.is_default(&found)) {
            return Ok(false);
        }
        self.reapplied.remove(&key);
        self.writers.settle(id, knob);
        let original = self.original_of_left(id, knob, &found).unwrap_or(&found);
        let original = original.to_owned();
        self.taken.insert(key, original);
        if knob == Knob::MemoryLow {
            self.set(cgroup, knob, &knob.default_value())?;
        }
        Ok(true)
    }
}

/// The name of an operator who has released a knob.
const OPERATOR: &str = "its operator, by `justitia release`";

/// Whether a value is known.
fn value(knob: Knob, found: &str, until: &Until) -> Value {
    let known = found == until.original || found == until.applied || knob.is_default(found);
    if known { Value::Known } else { Value::New }
}
