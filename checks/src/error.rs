//! What stops a check.

use std::path::PathBuf;

/// What stops a check: it does not say that what is checked is wrong.
#[derive(Debug, thiserror::Error)]
#[error("{}: {reason}", path.display())]
pub struct Error {
    /// The file.
    pub path: PathBuf,
    /// Why it cannot be read.
    pub reason: String,
}

/// The result of a step of a check.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    pub(crate) fn new(path: impl Into<PathBuf>, reason: impl ToString) -> Self {
        Self {
            path: path.into(),
            reason: reason.to_string(),
        }
    }
}
