//! How a virtual machine fails.

use std::time::Duration;

/// Why a request to a guest failed.
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
        "QEMU ended ({status}); its standard error ends: {stderr}\nthe guest's console ends:\n{console}"
    )]
    Exit {
        /// Its exit status.
        status: String,
        /// The end of its standard error.
        stderr: String,
        /// The console's last lines.
        console: String,
    },
    /// The guest sends no heartbeats any more.
    #[error("the guest hung: no message for {} s; its console ends:\n{console}", silence.as_secs())]
    Hang {
        /// The time since its last message.
        silence: Duration,
        /// The console's last lines.
        console: String,
    },
    /// The guest is alive, but a request took too long.
    #[error("expected the guest to {what} within {} s, it has not; its console ends:\n{console}", limit.as_secs())]
    Slow {
        /// The request.
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
    /// A message cannot be parsed.
    #[error("talking to the guest: {0}")]
    Protocol(#[from] serde_json::Error),
}

impl VmError {
    /// Whether this error is one of a guest that crashed; see [`is_crash`](Self::is_crash).
    #[must_use]
    pub fn crashed(error: &anyhow::Error) -> bool {
        error.downcast_ref().is_some_and(Self::is_crash)
    }

    /// Whether trying again with a fresh guest makes sense: emulated guests oops now and then without a cause of
    /// their own.
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
