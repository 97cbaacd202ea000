//! The write-ahead journal of the knob store.
//!
//! It has one line for each write of a knob: `crc32 json`. The line is appended and synced before the knob is written. So
//! after a crash at any moment, each knob that may hold our value is named, with its original value.
//!
//! The file and two of its fields keep the names of the first release (`ledger`, `before`, `ours`): an agent that was
//! killed before an upgrade or a downgrade may have left a journal to the other version. A newer version may add kinds of
//! lines and of knobs: an older one keeps intact lines that it does not know, for the newer one. The first line stays.

#![deny(clippy::indexing_slicing)]

mod error;
mod format;
mod read;
#[cfg(test)]
mod tests;
mod write;

pub use self::error::JournalError;
pub use self::format::{JournalEntry, boot_id};
pub use self::read::Contents;
pub use self::write::Journal;

/// The name of the file in the state directory.
pub const FILE_NAME: &str = "ledger";
