//! The directory that a workload works in.

use std::path::Path;

use anyhow::{Result, bail};

/// Whether `path` names a place that can hold the files: said before anything is written.
///
/// # Errors
/// It exists and is no directory.
pub(crate) fn check(path: &Path) -> Result<()> {
    if path.exists() && !path.is_dir() {
        bail!("--dir: expected a directory, {} is none", path.display());
    }
    Ok(())
}
