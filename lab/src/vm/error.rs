//! How a virtual machine fails.

use std::time::Duration;

/// Why a guest did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum VmError {
    /// The guest's kernel gave up.
    #[error("the guest's kernel panicked; its console ends:\n{console}")]
    Panic {
        /// The console's last lines.
        console: String,
    },
    /// QEMU ended, and not because of a panic.
    #[error(
        "QEMU ended ({status}); its last words: {stderr}\nthe guest's console ends:\n{console}"
    )]
    Exit {
        /// How it ended.
        status: String,
        /// The end of its standard error.
        stderr: String,
        /// The console's last lines.
        console: String,
    },
    /// The guest stopped showing that it lives.
    #[error("the guest hung: no sign of life for {} s; its console ends:\n{console}", silence.as_secs())]
    Hang {
        /// For how long it was silent.
        silence: Duration,
        /// The console's last lines.
        console: String,
    },
    /// The guest lives, but a request took too long.
    #[error("expected the guest to {what} within {} s, it has not; its console ends:\n{console}", limit.as_secs())]
    Slow {
        /// What it was asked.
        what: String,
        /// The limit.
        limit: Duration,
        /// The console's last lines.
        console: String,
    },
    /// The guest's runner refused or failed.
    #[error("in the guest: {0}")]
    Guest(String),
    /// The host could not talk to QEMU or the guest.
    #[error("talking to the guest: {0}")]
    Host(#[from] std::io::Error),
    /// Something that was said cannot be understood.
    #[error("talking to the guest: {0}")]
    Wire(#[from] serde_json::Error),
}

impl VmError {
    /// Whether trying again with a fresh guest makes sense: emulated guests oops now and then for
    /// no reason of theirs.
    #[must_use]
    pub const fn is_crash(&self) -> bool {
        matches!(
            self,
            Self::Panic { .. } | Self::Hang { .. } | Self::Exit { .. }
        )
    }

    /// The end of the guest's console, where the guest itself failed.
    #[must_use]
    pub fn console(&self) -> Option<&str> {
        match self {
            Self::Panic { console }
            | Self::Exit { console, .. }
            | Self::Hang { console, .. }
            | Self::Slow { console, .. } => Some(console),
            _ => None,
        }
    }
}
