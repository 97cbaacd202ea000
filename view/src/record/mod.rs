//! Recordings: statuses in a file, as JSON lines compressed by zstd. `zstdcat FILE` prints them.
//!
//! A file is a title, then blocks of up to [`BLOCK`] statuses, each a zstd frame that can be read by itself, so that any
//! moment is reached by reading one of them. Before each block stands its head: its length, checksum, times and how many
//! statuses it has. Title and heads are skippable frames, which zstd passes over. What was cut off, or damaged, costs the
//! blocks that it hit, and the reader finds the next one by the mark of its head.

#![deny(clippy::indexing_slicing)]

mod averages;
mod read;
mod write;

pub use averages::{TenantAverage, averages};
pub use read::Recording;
pub use write::{Recorder, Summary};

/// Statuses in a block: what a killed recorder loses at most.
pub const BLOCK: usize = 60;

/// How a file begins: a skippable frame (RFC 8878, 3.1.2) of 24 bytes.
const TITLE: &[u8; 32] = b"\x5b\x2a\x4d\x18\x18\x00\x00\x00justitia recording 2   \n";
/// How the head of a block begins: the magic number and the length (28) of a skippable frame.
const MARK: [u8; 8] = [0x5a, 0x2a, 0x4d, 0x18, 28, 0, 0, 0];
/// Mark, checksum of all that follows it (4), length of the frame (4), first and last time (8 each), statuses (4).
const HEAD: usize = 36;
/// Where in a head its checksum begins, and where what it is the checksum of.
const SUM: usize = MARK.len();
const SUMMED: usize = SUM + 4;
/// A block ends when its statuses are this long, bytes.
const FULL_BYTES: usize = 16 << 20;
/// A block is at most this long, compressed and not: one status more, which is an answer of the agent.
const MAX_BYTES: usize = FULL_BYTES + (16 << 20) + 1;
/// The decoder's window is at most this large, as a power of two, bytes.
const WINDOW: u32 = 25;

/// Why a recording cannot be written or read.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// There is none, or it cannot be read.
    #[error(
        "{path}: expected a recording made by `justitia record` that can be read, found none: {source}"
    )]
    Open {
        /// The file.
        path: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// It cannot be made.
    #[error(
        "{path}: expected a place where a new file can be made, found none: {source}: name a file that does not exist, in \
         a directory that this user may write"
    )]
    Create {
        /// The file.
        path: String,
        /// What the system said.
        source: std::io::Error,
    },
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
    #[error("{path}: the block at byte {offset} is not understood: expected {what}")]
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
