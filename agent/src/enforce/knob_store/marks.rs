//! Marks on the cgroups whose knobs are ours. They tell our values from an operator's where the journal was lost: `/run` may
//! be cleaned, or the next agent may have another state directory.
//!
//! A mark has what the journal has of its knob. It is set before the knob is written, with the value that stands there as
//! well, so a crash in between leaves none of ours unknown. No tenant can forge one (see [`Cgroup::set_mark`]).

use std::collections::HashSet;

use justitia_kernel::cgroup::{Cgroup, CgroupFs};
use justitia_kernel::knob::Knob;
use serde::{Deserialize, Serialize};

use crate::enforce::journal::JournalEntry;
use crate::escape;

#[derive(Serialize, Deserialize)]
struct Mark {
    knob: Knob,
    /// The value before our first write.
    original: String,
    /// Our last value, if any, and the one that is about to be written.
    applied: Vec<String>,
}

/// Marks that a knob is about to be written. Where that is not possible, only the journal tells.
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

/// The knobs that an agent has left which no entry in `journal` names: one entry for each of its values.
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
