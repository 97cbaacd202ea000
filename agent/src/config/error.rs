//! What is wrong with a configuration, by file and line.

use std::path::{Path, PathBuf};

use justitia_api::escape;

/// One error or warning. Its text is safe to print to a terminal, whatever the file and its name hold.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{}{}: {}",
    escape::encode(path.as_os_str()),
    if *line == 0 { String::new() } else { format!(":{line}") },
    escape::plain(what)
)]
pub struct ConfigError {
    /// The file.
    pub path: PathBuf,
    /// The line, from 1; 0 if it is about the whole file.
    pub line: usize,
    /// What was expected and what was found.
    pub what: String,
}

impl ConfigError {
    /// About the whole of `path`.
    pub(super) fn whole(path: &Path, what: String) -> Self {
        Self::at(path, 0, what)
    }

    /// About one line of `path`.
    pub(super) fn at(path: &Path, line: usize, what: String) -> Self {
        Self {
            path: path.to_owned(),
            line,
            what,
        }
    }
}
