//! Putting knobs back as they stood before the agent came.

use std::collections::HashMap;
use std::path::Path;

use justitia_kernel::Result;
use justitia_kernel::cgroup::{Cgroup, CgroupFs, CgroupId};
use justitia_kernel::knob::{Knob, read_raw, write_raw};
use rustix::io::Errno;

use super::super::journal::Entry;
use super::{Back, Key, Returned};
use crate::escape;

/// Gives back the knobs of a journal. Also returns the entries of those that are still to be given back, in order.
pub(super) fn give_back(fs: &CgroupFs, entries: Vec<Entry>) -> (Vec<Returned>, Vec<Entry>) {
    let mut returned = Vec::new();
    let mut failed = Vec::new();
    for writes in of_one_knob(entries).into_values() {
        let (Some(first), Some(last)) = (writes.first(), writes.last()) else {
            continue;
        };
        // A crash between the journal and the knob leaves an older value of ours there, or none: all of them are ours.
        let ours: Vec<&str> = writes.iter().map(|w| w.ours.as_str()).collect();
        let back = match find(fs, last) {
            Ok(Some(cgroup)) => put_back(&cgroup, last.knob, &first.before, &ours),
            Ok(None) => Back::Gone,
            Err(error) => Back::Failed {
                error: error.to_string(),
            },
        };
        returned.push(told(first, back.clone()));
        if matches!(back, Back::Failed { .. }) {
            failed.extend(writes);
        }
    }
    (returned, failed)
}

/// The writes by knob, in order.
pub(super) fn of_one_knob(entries: Vec<Entry>) -> HashMap<Key, Vec<Entry>> {
    let mut knobs: HashMap<Key, Vec<Entry>> = HashMap::new();
    for entry in entries {
        let key = (CgroupId(entry.cgroup), entry.knob);
        knobs.entry(key).or_default().push(entry);
    }
    knobs
}

/// An entry's cgroup; `None` if it is gone: there is nothing at its path, or a cgroup of another id.
fn find(fs: &CgroupFs, entry: &Entry) -> Result<Option<Cgroup>> {
    let Some(path) = escape::decode(&entry.path) else {
        return Ok(None);
    };
    match Cgroup::open_at(fs, Path::new(&path)) {
        Ok(cgroup) => Ok((cgroup.id().0 == entry.cgroup).then_some(cgroup)),
        Err(error) if error.is_gone() => Ok(None),
        Err(error) => Err(error),
    }
}

/// Writes `before` to a knob, if one of `ours` stands there.
pub(super) fn put_back(cgroup: &Cgroup, knob: Knob, before: &str, ours: &[&str]) -> Back {
    let done = read_raw(cgroup, knob).and_then(|found| {
        if found == before {
            return Ok(Back::Restored);
        }
        if !ours.contains(&found.as_str()) {
            return Ok(Back::Foreign { found });
        }
        write_raw(cgroup, knob, before).map(|()| Back::Restored)
    });
    done.unwrap_or_else(|e| {
        // Where the controller was taken away from the cgroup, its values went with it.
        if e.is_gone() || e.is_missing() {
            Back::Gone
        } else {
            Back::Failed {
                error: e.to_string(),
            }
        }
    })
}

/// Whether the kernel has refused for good, rather than for want of something at this moment.
pub(super) fn is_refusal(error: &justitia_kernel::Error) -> bool {
    const PASSING: [Errno; 7] = [
        Errno::MFILE,
        Errno::NFILE,
        Errno::NOMEM,
        Errno::NOBUFS,
        Errno::INTR,
        Errno::AGAIN,
        Errno::BUSY,
    ];
    error.errno().is_none_or(|errno| !PASSING.contains(&errno))
}

/// As it is told.
pub(super) fn told(entry: &Entry, back: Back) -> Returned {
    Returned {
        path: entry.path.clone(),
        knob: entry.knob,
        before: entry.before.clone(),
        back,
    }
}

/// Logs what became of knobs; `when` says on which occasion.
pub fn log_returned(when: &str, returned: &[Returned]) {
    for Returned {
        path,
        knob,
        before,
        back,
    } in returned
    {
        match back {
            Back::Restored => {
                tracing::debug!(tenant = path, %knob, before, when, "given back");
            }
            Back::Gone => tracing::debug!(tenant = path, %knob, when, "its cgroup is gone"),
            Back::Foreign { found } => {
                tracing::warn!(tenant = path, %knob, found, when, "someone else wrote it: left");
            }
            Back::Failed { error } => {
                tracing::error!(tenant = path, %knob, before, error, when, "could not be given back");
            }
        }
    }
}
