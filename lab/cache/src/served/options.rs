//! What is measured, and why it may fail.

use justitia_cache::CacheError;
use justitia_cache::serve::ServeError;
use justitia_cache::serve::Size;
use std::io;
use std::path::PathBuf;

/// What to measure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Where the image lies.
    pub directory: PathBuf,
    /// Bytes of the image.
    pub size: Size,
    /// Runs of each, of which the median is taken.
    pub runs: usize,
    /// Seconds of a run.
    pub seconds: u32,
}

/// Why nothing was measured.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// The server under test.
    #[error(transparent)]
    Serve(#[from] ServeError),
    /// The cache under test.
    #[error(transparent)]
    Cache(#[from] CacheError),
    /// A program did not do its part.
    #[error("expected {program} to run, found: {why}")]
    Program {
        /// Which.
        program: String,
        /// What it said.
        why: String,
    },
    /// A file.
    #[error("cannot prepare the image: {0}")]
    Io(#[from] io::Error),
}
