//! Writes original values back into knobs.

use std::collections::HashMap;
use std::path::Path;

use justitia_kernel::Result;
use justitia_kernel::cgroup::{Cgroup, CgroupFs, CgroupId};
use justitia_kernel::error::is_exhaustion;
use justitia_kernel::knob::{Knob, read_raw, write_raw};
use rustix::io::Errno;

use super::marks;
use super::outcome::{RestoreOutcome, RestoredKnob};
use super::read_only::is_read_only;
use crate::enforce::journal::JournalEntry;
use crate::escape;

/// A knob of a cgroup.
pub(super) type KnobKey = (CgroupId, Knob);

/// Restores the knobs of a journal. Also returns the entries of those that still have to be restored, in order.
pub(super) fn restore_entries(
    fs: &CgroupFs,
    entries: Vec<JournalEntry>,
) -> (Vec<RestoredKnob>, Vec<JournalEntry>) {
    restore_entries_with(fs, entries, write_raw, marks::remove)
}

/// As [`restore_entries`], without a write: what that would do.
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
        // A crash between the journal's write and the knob's leaves an older value of ours there, or none. So each value in
        // the journal counts as ours.
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

/// The writes by knob, in order.
pub(super) fn by_knob(entries: Vec<JournalEntry>) -> HashMap<KnobKey, Vec<JournalEntry>> {
    let mut knobs: HashMap<KnobKey, Vec<JournalEntry>> = HashMap::new();
    for entry in entries {
        let key = (CgroupId(entry.cgroup), entry.knob);
        knobs.entry(key).or_default().push(entry);
    }
    knobs
}

/// An entry's cgroup; `None` if it was removed: its path does not exist, or is a cgroup of another id.
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
pub(in crate::enforce) type WriteKnob = fn(&Cgroup, Knob, &str) -> Result<()>;

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
        // When a controller is disabled for a cgroup, the values of its knobs are dropped.
        if e.is_gone() || e.is_missing() {
            RestoreOutcome::Gone
        } else {
            RestoreOutcome::Failed {
                error: e.to_string(),
            }
        }
    })
}

/// Whether the kernel refuses a write for good, rather than for lack of a resource at this moment.
pub(super) fn is_refusal(error: &justitia_kernel::Error, knob: Knob) -> bool {
    const TRANSIENT: [Errno; 4] = [Errno::NOBUFS, Errno::INTR, Errno::AGAIN, Errno::BUSY];
    let passes = |errno| is_exhaustion(errno) || TRANSIENT.contains(&errno);
    !is_read_only(error, knob) && error.errno().is_none_or(|errno| !passes(errno))
}

#[cfg(test)]
mod tests {
    use justitia_kernel::Error;
    use justitia_kernel::error::Operation;

    use super::*;

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
