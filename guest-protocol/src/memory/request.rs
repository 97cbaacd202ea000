//! What a host asks.

use serde::{Deserialize, Serialize};

use crate::memory::text::{Malformed, read};

/// What a host asks a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "snake_case")]
pub enum Request {
    /// What the memory is used for.
    State {
        /// The answer has it too.
        id: u64,
    },
    /// Give memory back: clean cache that is not worth having, never what is in use.
    Reclaim {
        /// The answer has it too.
        id: u64,
        /// So many bytes at most.
        bytes: u64,
        /// The answer is wanted within so many milliseconds, with what was given back until then.
        within_ms: u32,
    },
    /// Which blocks of its disks are in its page cache: those of a sample.
    Cached {
        /// The answer has it too.
        id: u64,
        /// Chooses the sample ([`crate::memory::is_sampled`]).
        seed: u64,
    },
    /// Among what it divides its page cache.
    Tenants {
        /// The answer has it too.
        id: u64,
    },
}

impl Request {
    /// Its id.
    #[must_use]
    pub const fn id(&self) -> u64 {
        match *self {
            Self::State { id }
            | Self::Reclaim { id, .. }
            | Self::Cached { id, .. }
            | Self::Tenants { id } => id,
        }
    }

    /// Reads a line.
    ///
    /// # Errors
    /// If it is no request, or of a kind that is not known.
    pub fn decode(line: &[u8]) -> Result<Self, Malformed> {
        read(line, "a request")
    }
}
