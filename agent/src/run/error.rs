//! Why the agent cannot run.

use crate::config::StateOnDisk;
use crate::enforce::knob_store::KnobStoreError;

/// Why the agent cannot run.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The machine lacks something that the agent needs.
    #[error("{feature} cannot work here: {}. `justitia doctor` says more; nothing was changed", reasons.join("; "))]
    Unavailable {
        /// What cannot work.
        feature: &'static str,
        /// Why.
        reasons: Vec<String>,
    },
    /// The journal would wait for a disk that the agent limits.
    #[error(transparent)]
    State(#[from] StateOnDisk),
    /// The knob store cannot be used.
    #[error(transparent)]
    KnobStore(#[from] KnobStoreError),
    /// Knobs could not be restored at the end.
    #[error(
        "{0} knobs could not be restored; their original values stay in the journal: the next start or `justitia reset` \
         restores them"
    )]
    NotRestored(usize),
    /// A file of the kernel cannot be read or written.
    #[error(transparent)]
    Kernel(#[from] justitia_kernel::Error),
    /// A system call failed.
    #[error("{what}: {source}")]
    System {
        /// What was being done.
        what: String,
        /// The system's error.
        source: std::io::Error,
    },
}

impl RunError {
    pub(super) fn system(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> Self {
        let what = what.into();
        |source| Self::System { what, source }
    }
}
