//! A host's requests.

use serde::{Deserialize, Serialize};

use crate::memory::text::{Malformed, read};

/// A host's request to a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "snake_case")]
pub enum Request {
    /// How the guest uses its memory.
    State {
        /// The answer repeats it.
        id: u64,
    },
    /// Give memory back: clean cache that is not worth having, never memory in use.
    Reclaim {
        /// The answer repeats it.
        id: u64,
        /// The most bytes.
        bytes: u64,
        /// The time limit of the answer, milliseconds. It tells the memory given back until then.
        within_ms: u32,
    },
    /// The blocks of its disks in its page cache: a sample of them.
    Cached {
        /// The answer repeats it.
        id: u64,
        /// Chooses the sample ([`crate::memory::is_sampled`]).
        seed: u64,
    },
    /// The tenants that share its page cache.
    Tenants {
        /// The answer repeats it.
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
    /// If it is no request, or one of an unknown kind.
    pub fn decode(line: &[u8]) -> Result<Self, Malformed> {
        read(line, "a request")
    }
}
