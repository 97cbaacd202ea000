//! Files from the host.

use std::fs::OpenOptions;
use std::os::unix::fs::{FileExt, PermissionsExt};

use anyhow::{Context, Result};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;

/// Writes a part of a file; the first part makes the file.
pub(super) fn push(path: &str, mode: u32, offset: u64, part: &str) -> Result<()> {
    let part = BASE64.decode(part).context("expected base64")?;
    let file = OpenOptions::new()
        .create(true)
        .write(true)
        .truncate(offset == 0)
        .open(path)
        .with_context(|| format!("opening {path}"))?;
    file.write_all_at(&part, offset)
        .with_context(|| format!("writing {path}"))?;
    file.set_permissions(PermissionsExt::from_mode(mode))
        .with_context(|| format!("setting the mode of {path}"))
}
