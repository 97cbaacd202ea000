//! Why an experiment cannot run.

use crate::error::CacheError;
use justitia_common::toml_file::TomlError;
use std::path::PathBuf;

/// Why an experiment cannot run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExperimentError {
    /// The file cannot be read, or is no experiment.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
    Toml(Vec<TomlError>),
    /// It says what cannot be.
    #[error("{name}: {problem}")]
    Content {
        /// The experiment.
        name: String,
        /// What was expected and what was found.
        problem: String,
    },
    /// The SSD store cannot lie there.
    #[error(
        "expected a directory for the SSD store in which files can be made, found {path}: {source}"
    )]
    Directory {
        /// The directory.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// The cache refused something.
    #[error("{0}")]
    Cache(#[from] CacheError),
}
