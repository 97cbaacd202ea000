//! Why an experiment cannot run.

use justitia_cache::CacheError;
use justitia_common::toml_file::TomlError;

/// Why an experiment cannot run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExperimentError {
    /// The file cannot be read, or is no experiment.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
    Toml(Vec<TomlError>),
    /// It says what cannot be, or its SSD store cannot lie there: what was expected and found.
    #[error("{0}")]
    Refused(String),
    /// The cache refused something.
    #[error("{0}")]
    Cache(#[from] CacheError),
}
