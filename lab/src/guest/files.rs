//! Files to and from the host.

use std::fs::{File, OpenOptions};
use std::io::Read;
use std::os::unix::fs::{FileExt, PermissionsExt};

use anyhow::{Context, Result};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;

use crate::protocol::CHUNK;

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

/// Reads a part of a file, in base64; empty at its end.
pub(super) fn pull(path: &str, offset: u64) -> Result<String> {
    let mut file = File::open(path).with_context(|| format!("opening {path}"))?;
    let mut part = vec![0; CHUNK];
    // Files in /proc and /sys do not seek to any place, but are small: read from their beginning.
    let count = if offset == 0 {
        file.read(&mut part)
    } else {
        file.read_at(&mut part, offset)
    }
    .with_context(|| format!("reading {path}"))?;
    part.truncate(count);
    Ok(BASE64.encode(part))
}
