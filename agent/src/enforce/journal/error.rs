//! Why the journal cannot be used.

use std::path::{Path, PathBuf};

/// Why the journal cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// The file could not be read or written.
    #[error("the knob journal {path}: {source}")]
    Io {
        /// Which file.
        path: PathBuf,
        /// What was found there, or the system's error.
        source: std::io::Error,
    },
    /// The id of this boot could not be read, by which a journal is known to be of this boot.
    #[error("the id of this boot, {path}: {source}; without it the knob journal is not used")]
    Boot {
        /// Which file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// A line is not what was written.
    #[error(
        "the knob journal {path} is corrupt at line {line}: expected {expected}, found {found:?}. Nothing was \
         changed. `justitia reset --salvage` restores each knob whose entry is intact and that still holds the \
         agent's value, lists them, and moves the file aside"
    )]
    Corrupt {
        /// Which file.
        path: PathBuf,
        /// Its first corrupt line, from 1.
        line: usize,
        /// What an intact line has.
        expected: &'static str,
        /// The beginning of the line.
        found: String,
    },
}

impl JournalError {
    pub(super) fn io(path: &Path, source: std::io::Error) -> Self {
        Self::Io {
            path: path.to_owned(),
            source,
        }
    }
}
