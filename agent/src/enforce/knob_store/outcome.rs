//! The results of writes and restores.

use justitia_kernel::knob::Knob;

use crate::enforce::journal::JournalEntry;

/// The result of a request to write a knob.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WriteOutcome {
    /// The value was written.
    Written,
    /// The knob held the value already; nothing was written.
    Unchanged,
    /// Another writer has set the knob since our last write. It is external from now on.
    External {
        /// The value that we had written last; empty if the knob was external before.
        applied: String,
        /// The value that was found.
        found: String,
    },
    /// The original value, or the kernel's default, had been written over ours, as systemd does at `daemon-reload`. Ours
    /// was written again.
    Reapplied {
        /// The value that was found.
        found: String,
    },
    /// The cgroup was removed, or has no such knob any more.
    Gone,
    /// The agent has given the knob up ([`Unwritable::GivenUp`]); nothing was written.
    GivenUp,
    /// Nothing was written now: an earlier agent's value could not be restored yet, so the original value is not known; or
    /// the store has restored all and is closed.
    Deferred,
}

/// Why a knob is not written any more until the agent ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unwritable {
    /// Another writer has set it.
    External {
        /// The value found there.
        found: String,
    },
    /// The agent has given it up: the kernel refused a write, or took too long for it.
    GivenUp {
        /// What happened, in words.
        why: String,
    },
}

/// The result of restoring a knob.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RestoreOutcome {
    /// It holds the original value again.
    Restored,
    /// It holds a value of another writer, which was left.
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
    /// Which knob.
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

/// Logs the results of restores; `when` says on which occasion.
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
