//! The knobs: the [`KnobStore`] makes every write of a cgroup knob, and restores the original values.
//!
//! It records the original value on disk before the first write (see [`journal`]). If another writer has set a value, `writers`
//! names the writer and decides whether the value stays: then the knob is external, and not written. A knob whose write the
//! kernel refuses is given up. All other knobs are restored when the agent ends, or when the next agent starts. A failed
//! restore is retried until it succeeds ([`KnobStore::retry_restores`]). The [`watchdog`] restores limits when the agent
//! cannot.

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
