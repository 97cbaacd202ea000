//! The knobs: every write of a cgroup knob goes through the [`KnobStore`], and it restores the original values.
//!
//! It records the original value on disk before the first write (see [`journal`]). When it finds a value that another writer
//! has set, `writers` says whose value it is, and whether it is left: then the knob is external. Nor does it where the kernel refuses a write: the knob is given up.
//! It restores all other knobs when the agent ends, or when the next agent starts. A restore that fails is tried again until
//! it succeeds ([`KnobStore::retry_restores`]). The [`watchdog`] restores limits when the agent cannot.

mod holder;
pub mod journal;
mod lock;
mod machine;
mod put_back;
mod restore;
mod store;
pub mod watchdog;
mod write;
mod writers;
mod yielding;

pub use self::lock::KnobStoreError;
pub use self::machine::machine_setting;
pub use self::put_back::{
    RestoreOutcome, RestoredKnob, Until, Unwritable, WriteOutcome, log_restored,
};
pub use self::restore::{
    Corruption, LeftLimits, ResetReport, preview_reset, reset, restore_limits,
};
pub use self::store::KnobStore;
pub use self::yielding::TakenBack;
