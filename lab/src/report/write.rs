//! Writes a document of results.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::schema::Results;

/// Writes a document into a directory that is there, as `NAME.json`; a reader sees the old one or the new one.
///
/// # Errors
/// When it cannot be written.
pub(crate) fn write(results: &Results, directory: &Path, name: &str) -> Result<PathBuf> {
    let path = directory.join(format!("{name}.json"));
    let file = tempfile::NamedTempFile::new_in(directory)
        .with_context(|| format!("writing in {}", directory.display()))?;
    serde_json::to_writer_pretty(&file, results).context("writing results")?;
    file.persist(&path)
        .with_context(|| format!("writing {}", path.display()))?;
    Ok(path)
}
