//! The knob store: every write of a cgroup knob goes through it, and it restores the original values.
//!
//! It records the original value on disk before the first write (see [`journal`](super::journal)). When it finds a value
//! that another writer has set, it never writes again: the knob is external. Nor does it where the kernel refuses a write:
//! the knob is given up. It restores all other knobs when the agent
//! ends, or when the next agent starts. A restore that fails is tried again until it succeeds
//! ([`KnobStore::retry_restores`]).

mod error;
mod journaling;
mod lock;
mod marks;
mod outcome;
mod put_back;
mod query;
mod read_only;
mod reapply;
mod reset;
mod restore;
mod store;
mod write;

pub use self::error::KnobStoreError;
pub use self::outcome::{RestoreOutcome, RestoredKnob, Unwritable, WriteOutcome, log_restored};
pub use self::reset::{Corruption, LeftLimits, ResetReport, preview_reset, reset, restore_limits};
pub use self::store::KnobStore;
