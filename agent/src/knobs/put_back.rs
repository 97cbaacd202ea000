//! Restores one knob: writes its original value, removes the mark on its cgroup, and returns the outcome.

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::time::{Duration, Instant};

use justitia_api::escape;
use justitia_kernel::cgroup::{Cgroup, CgroupFs, CgroupId};
use justitia_kernel::error::{Operation, is_exhaustion};
use justitia_kernel::knob::{Knob, read_raw, write_raw};
use justitia_kernel::{Error, Result};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::journal::JournalEntry;

/// A knob of a cgroup.
pub(super) type KnobKey = (CgroupId, Knob);

/// Restores the knobs of a journal. Also returns, in order, the entries of those that could not be restored yet.
pub(super) fn restore_entries(
    fs: &CgroupFs,
    entries: Vec<JournalEntry>,
) -> (Vec<RestoredKnob>, Vec<JournalEntry>) {
    restore_entries_with(fs, entries, write_raw, remove)
}

/// The results that [`restore_entries`] would have, without a write.
pub(super) fn preview_entries(fs: &CgroupFs, entries: Vec<JournalEntry>) -> Vec<RestoredKnob> {
    restore_entries_with(fs, entries, |_, _, _| Ok(()), |_, _| ()).0
}

fn restore_entries_with(
    fs: &CgroupFs,
    entries: Vec<JournalEntry>,
    write: WriteKnob,
    unmark: fn(&Cgroup, Knob),
) -> (Vec<RestoredKnob>, Vec<JournalEntry>) {
    let mut restored = Vec::new();
    let mut failed = Vec::new();
    for writes in by_knob(entries).into_values() {
        let (Some(first), Some(last)) = (writes.first(), writes.last()) else {
            continue;
        };
        // After a crash between the journal's write and the knob's, the knob holds an older value of ours, or none. So each
        // value in the journal counts as ours.
        let applied: Vec<&str> = writes.iter().map(|w| w.applied.as_str()).collect();
        let outcome = match find(fs, last) {
            Ok(Some(cgroup)) => {
                let outcome = put_back(&cgroup, last.knob, &first.original, &applied, write);
                if !outcome.is_failed() {
                    unmark(&cgroup, last.knob);
                }
                outcome
            }
            Ok(None) => RestoreOutcome::Gone,
            Err(error) => RestoreOutcome::Failed {
                error: error.to_string(),
            },
        };
        restored.push(RestoredKnob::new(first, outcome.clone()));
        if outcome.is_failed() {
            failed.extend(writes);
        }
    }
    (restored, failed)
}

/// The writes grouped by knob, in order.
pub(super) fn by_knob(entries: Vec<JournalEntry>) -> HashMap<KnobKey, Vec<JournalEntry>> {
    let mut knobs: HashMap<KnobKey, Vec<JournalEntry>> = HashMap::new();
    for entry in entries {
        let key = (CgroupId(entry.cgroup), entry.knob);
        knobs.entry(key).or_default().push(entry);
    }
    knobs
}

/// An entry's cgroup; `None` if it was removed: its path does not exist, or leads to a cgroup with another id.
fn find(fs: &CgroupFs, entry: &JournalEntry) -> Result<Option<Cgroup>> {
    let Some(path) = escape::decode(&entry.path) else {
        return Ok(None);
    };
    match Cgroup::open_at(fs, Path::new(&path)) {
        Ok(cgroup) => Ok((cgroup.id().0 == entry.cgroup).then_some(cgroup)),
        Err(error) if error.is_gone() => Ok(None),
        Err(error) => Err(error),
    }
}

/// Writes a value to a knob of a cgroup.
pub(crate) type WriteKnob = fn(&Cgroup, Knob, &str) -> Result<()>;

/// Writes `original` to a knob with `write`, if it holds one of the values `applied`.
pub(super) fn put_back(
    cgroup: &Cgroup,
    knob: Knob,
    original: &str,
    applied: &[&str],
    write: WriteKnob,
) -> RestoreOutcome {
    let done = read_raw(cgroup, knob).and_then(|found| {
        if found == original {
            return Ok(RestoreOutcome::Restored);
        }
        if !applied.contains(&found.as_str()) {
            return Ok(RestoreOutcome::External { found });
        }
        write(cgroup, knob, original).map(|()| RestoreOutcome::Restored)
    });
    done.unwrap_or_else(|e| {
        // Disabling a controller for a cgroup drops the values of its knobs.
        if e.is_gone() || e.is_missing() {
            RestoreOutcome::Gone
        } else {
            RestoreOutcome::Failed {
                error: e.to_string(),
            }
        }
    })
}

/// Whether the kernel refuses a write permanently, not only for lack of a resource now.
pub(super) fn is_refusal(error: &justitia_kernel::Error, knob: Knob) -> bool {
    const TRANSIENT: [Errno; 4] = [Errno::NOBUFS, Errno::INTR, Errno::AGAIN, Errno::BUSY];
    let passes = |errno| is_exhaustion(errno) || TRANSIENT.contains(&errno);
    !is_read_only(error, knob) && error.errno().is_none_or(|errno| !passes(errno))
}

/// The result of a request to write a knob.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WriteOutcome {
    /// The value was written.
    Written,
    /// The knob held the value already; nothing was written.
    Unchanged,
    /// Another writer has set the knob since our last write. It is external from now on.
    External {
        /// Our last value; empty if the knob was external before.
        applied: String,
        /// The found value.
        found: String,
        /// Its writer, in words; empty if not known.
        by: String,
    },
    /// The original value, or the kernel's default, had replaced ours, as systemd does at `daemon-reload`. Ours was written
    /// again.
    Reapplied {
        /// The found value.
        found: String,
    },
    /// The cgroup was removed, or has no such knob any more.
    Gone,
    /// The agent has given the knob up ([`Unwritable::GivenUp`]); nothing was written.
    GivenUp,
    /// Nothing was written now. Either an earlier agent's value could not be restored yet, so the original value is unknown; or
    /// the store has restored all and is closed.
    Deferred,
}

/// Why a knob is not written any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unwritable {
    /// Another writer has set it.
    External {
        /// The found value.
        found: String,
        /// Its writer, in words; empty if not known.
        by: String,
        /// The condition that makes it ours again; `None` if it stays external until the agent ends.
        until: Option<Until>,
    },
    /// The agent has given it up: the kernel refused a write, or a write took too long.
    GivenUp {
        /// The reason, in words.
        why: String,
    },
}

/// The condition that makes ours again a knob that is left to systemd or the kubelet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Until {
    /// The value before our first write.
    pub original: String,
    /// The value of our last write.
    pub applied: String,
    /// Whether it is left only until our value may be written again, even if it is not reset.
    pub paused: bool,
}

/// The result of restoring a knob.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RestoreOutcome {
    /// It holds the original value again.
    Restored,
    /// It holds another writer's value, which stays.
    External {
        /// That value.
        found: String,
    },
    /// Its cgroup was removed.
    Gone,
    /// The kernel refused the write.
    Failed {
        /// The kernel's error.
        error: String,
    },
}

impl RestoreOutcome {
    /// Whether the knob still holds our value.
    #[must_use]
    pub const fn is_failed(&self) -> bool {
        matches!(self, Self::Failed { .. })
    }
}

/// A knob, and the result of restoring it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RestoredKnob {
    /// The cgroup's path below the cgroup2 mount, escaped.
    pub path: String,
    /// The knob.
    pub knob: Knob,
    /// The value before our first write.
    pub original: String,
    /// The result.
    pub outcome: RestoreOutcome,
}

impl RestoredKnob {
    pub(super) fn new(entry: &JournalEntry, outcome: RestoreOutcome) -> Self {
        Self {
            path: entry.path.clone(),
            knob: entry.knob,
            original: entry.original.clone(),
            outcome,
        }
    }
}

/// Logs the results of restores; `when` names the occasion.
pub fn log_restored(when: &str, restored: &[RestoredKnob]) {
    for RestoredKnob {
        path,
        knob,
        original,
        outcome,
    } in restored
    {
        match outcome {
            RestoreOutcome::Restored => {
                tracing::debug!(tenant = path, %knob, original, when, "restored");
            }
            RestoreOutcome::Gone => {
                tracing::debug!(tenant = path, %knob, when, "not restored: its cgroup was removed");
            }
            RestoreOutcome::External { found } => {
                tracing::warn!(tenant = path, %knob, found, when, "not restored: another writer has set it");
            }
            RestoreOutcome::Failed { error } => {
                tracing::error!(tenant = path, %knob, original, error, when, "could not be restored");
            }
        }
    }
}

// Marks on the cgroups of our knobs. They tell our values from an operator's without the journal: `/run` may be cleaned, or the
// next agent may have another state directory.
//
// A mark holds the same as the knob's journal entry. It is set before the knob is written, and includes the value before that
// write, so a crash in between leaves no unknown value of ours. No tenant can forge one (see [`Cgroup::set_mark`]).

#[derive(Serialize, Deserialize)]
struct Mark {
    knob: Knob,
    /// The value before our first write.
    original: String,
    /// Our last value, if any, and the one that is about to be written.
    applied: Vec<String>,
}

/// Marks a knob that is about to be written. If that fails, only the journal names it.
pub(super) fn set(cgroup: &Cgroup, knob: Knob, original: &str, applied: &[&str]) {
    let mark = Mark {
        knob,
        original: original.to_owned(),
        applied: applied.iter().map(|value| (*value).to_owned()).collect(),
    };
    let written = serde_json::to_vec(&mark)
        .map_err(|error| error.to_string())
        .and_then(|mark| {
            let set = cgroup.set_mark(&name(knob), &mark);
            set.map_err(|error| error.to_string())
        });
    if let Err(error) = written {
        tracing::trace!(%knob, error, "a cgroup could not be marked");
    }
}

/// Removes the mark of a knob that is no longer ours.
pub(super) fn remove(cgroup: &Cgroup, knob: Knob) {
    if let Err(error) = cgroup.remove_mark(&name(knob)) {
        tracing::trace!(%knob, %error, "a cgroup's mark could not be removed");
    }
}

/// Marked knobs of an earlier agent without an entry in `journal`: one entry for each of its values.
pub(super) fn left(fs: &CgroupFs, journal: &[JournalEntry]) -> Vec<JournalEntry> {
    let known: HashSet<_> = journal.iter().map(|e| (e.cgroup, e.knob)).collect();
    let mut left = Vec::new();
    for found in fs.marks() {
        let Ok(mark) = serde_json::from_slice::<Mark>(&found.value) else {
            continue;
        };
        let (cgroup, knob) = (found.cgroup.id().0, mark.knob);
        if known.contains(&(cgroup, knob)) {
            continue;
        }
        left.extend(mark.applied.into_iter().map(|applied| JournalEntry {
            cgroup,
            path: escape::encode(found.cgroup.path().as_os_str()),
            knob,
            original: mark.original.clone(),
            applied,
        }));
    }
    left
}

/// The name of a knob's mark.
fn name(knob: Knob) -> String {
    knob.to_string().replace(' ', ".")
}

// A cgroup2 mount that became read-only: knobs can be neither written nor restored.

/// The time between two tried writes. Each takes two synced lines in the journal.
const RETRY: Duration = Duration::from_secs(1);

/// A read-only mount.
#[derive(Debug)]
pub(super) struct ReadOnly {
    /// The error of the last tried write.
    why: String,
    retry_at: Instant,
}

impl ReadOnly {
    /// The mount was found read-only at `now`, by the error of a write.
    pub(super) fn new(error: &Error, now: Instant) -> Self {
        Self {
            why: error.to_string(),
            retry_at: now + RETRY,
        }
    }

    /// The error of the last tried write.
    pub(super) fn why(&self) -> &str {
        &self.why
    }

    /// The error of a write to `path`, if no write may be tried yet.
    pub(super) fn error(&self, path: &Path, now: Instant) -> Option<Error> {
        (now < self.retry_at).then(|| Error::Io {
            operation: Operation::Write,
            path: path.to_owned(),
            errno: Errno::ROFS,
        })
    }
}

/// Whether a knob is a cgroup's. One of the machine is a file below `/proc/sys`, which is another mount.
pub(super) const fn is_of_cgroup(knob: Knob) -> bool {
    !matches!(knob, Knob::DirtyBackground | Knob::VfsCachePressure)
}

/// Whether the mount of the cgroups is read-only. `/proc/sys` stays read-only for a service that systemd keeps from it.
pub(super) fn is_read_only(error: &Error, knob: Knob) -> bool {
    is_of_cgroup(knob) && error.errno() == Some(Errno::ROFS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use justitia_kernel::Error;
    use justitia_kernel::error::Operation;

    #[test]
    fn what_the_kernel_lacks_at_a_moment_or_a_read_only_mount_is_no_refusal() {
        let refused = |errno, knob| {
            let error = Error::Io {
                operation: Operation::Write,
                path: "a/memory.low".into(),
                errno,
            };
            is_refusal(&error, knob)
        };
        for transient in [Errno::MFILE, Errno::NFILE, Errno::NOMEM, Errno::ROFS] {
            assert!(!refused(transient, Knob::MemoryLow), "{transient}");
        }
        for refusal in [Errno::INVAL, Errno::ACCESS, Errno::PERM, Errno::OPNOTSUPP] {
            assert!(refused(refusal, Knob::MemoryLow), "{refusal}");
        }
        // As with ProtectKernelTunables=yes in the agent's unit.
        assert!(refused(Errno::ROFS, Knob::DirtyBackground));
    }
}
