//! The guest's file system: an initramfs from the host's own binaries and the kernel's modules.
//!
//! Built again only when something that goes into it has changed: the file's name is the hash of
//! the inputs.

mod archive;
mod contents;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::host::LabDir;
use crate::kernel::Kernel;
pub(crate) use contents::tools;

/// The initramfs for this kernel and these programs, built if it is not there yet.
///
/// # Errors
/// If a tool, a module or a program that belongs into it is missing, or the file cannot be written.
pub fn build(kernel: &Kernel, lab: &LabDir) -> Result<PathBuf> {
    let contents = contents::contents(kernel)?;
    let path = lab.dir("image")?.join(format!("{}.cpio", contents.hash()?));
    if !path.is_file() {
        remove_old(&lab.dir("image")?, 6)?;
        contents
            .write(&path)
            .with_context(|| format!("building the guest's image {}", path.display()))?;
    }
    Ok(path)
}

/// Keeps only the newest images, so that a day of building does not fill the disk.
fn remove_old(dir: &Path, keep: usize) -> Result<()> {
    let mut images = Vec::new();
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        images.push((entry.metadata()?.modified()?, entry.path()));
    }
    images.sort();
    let old = images.len().saturating_sub(keep);
    for (_, path) in images.into_iter().take(old) {
        // Another build may have removed it first.
        let _ = std::fs::remove_file(path);
    }
    Ok(())
}
