//! Recordings: statuses in a file.
//!
//! A file is a line that names the format, then blocks of up to [`BLOCK`] statuses. Every block can be read
//! by itself, so that any moment is reached by reading one of them: it begins with a mark, its length, its
//! checksum and its times, and holds the tenants' names and, column by column, the changes of each figure
//! from one status to the next, compressed. What was cut off, or damaged, costs the blocks that it hit, and
//! the reader finds the next one by its mark.
//!
//! Amounts and rates are kept to 1.1 %; times, weights and counts are exact. Decisions are kept once a block,
//! reasons of knobs are not.

#![deny(clippy::indexing_slicing)]

mod block;
mod decode;
mod encode;
mod fields;
mod numbers;
mod read;
mod write;

pub use read::Recording;
pub use write::{Recorder, Summary};

/// Statuses in a block: what a killed recorder loses at most.
pub const BLOCK: usize = 60;

/// The first line of a file.
const TITLE: &[u8] = b"justitia recording 1\n";
/// How a block begins.
const MARK: [u8; 4] = *b"\xa7JR\x01";
/// Mark, payload length (4), checksum of all that follows it (4), first and last time (8 each), statuses (4).
const HEAD: usize = 32;
/// A payload is at most this long, compressed and not: 60 statuses of 10,000 tenants need half of it.
const MAX_PAYLOAD_BYTES: usize = 64 << 20;
/// The decoder's window is at most this large, as a power of two, bytes.
const WINDOW: u32 = 25;

/// Why a recording cannot be written or read.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// The system's side.
    #[error("{path}: {source}")]
    System {
        /// The file.
        path: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// The file is something else.
    #[error("{path}: expected a recording made by `justitia record`, found something else")]
    NotOne {
        /// The file.
        path: String,
    },
    /// No block of the file is intact.
    #[error(
        "{path}: expected at least one whole block, found none (a recorder that is killed in its first \
             minute leaves none)"
    )]
    Empty {
        /// The file.
        path: String,
    },
    /// A block whose checksum is right does not hold what it should.
    #[error("{path}: the block at byte {offset} is not understood: {what}")]
    Block {
        /// The file.
        path: String,
        /// Where.
        offset: u64,
        /// What was expected.
        what: &'static str,
    },
}

#[cfg(test)]
mod tests;
