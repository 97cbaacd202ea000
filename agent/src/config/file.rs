//! Reads the text of one configuration file: a regular file of bounded size.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use rustix::fs::{Mode, OFlags};

use super::error::ConfigError;
use justitia_regular_file::kind;

/// The largest configuration file, bytes: some ten thousand rules.
const MAX_BYTES: u64 = 1 << 20;

/// Reads `path`. A pipe or a device is refused without waiting for it, and no file can fill the memory.
///
/// # Errors
/// What was expected and what was found.
pub(super) fn read(path: &Path) -> Result<String, ConfigError> {
    let text = String::from_utf8(bytes(path)?);
    text.map_err(|e| {
        let valid = e.utf8_error().valid_up_to();
        let before = e.as_bytes().get(..valid).unwrap_or_default();
        let line = 1 + before.iter().filter(|b| **b == b'\n').count();
        let what = "expected text in UTF-8, found other bytes: save the file as UTF-8";
        ConfigError::at(path, line, what.to_owned())
    })
}

fn bytes(path: &Path) -> Result<Vec<u8>, ConfigError> {
    let failed = |e: std::io::Error| ConfigError::whole(path, format!("cannot be read: {e}"));
    // Without NONBLOCK, opening a pipe that has no writer would wait for one.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let opened = rustix::fs::open(path, flags, Mode::empty());
    let mut file = File::from(opened.map_err(|e| failed(e.into()))?);
    let found = file.metadata().map_err(failed)?;
    if !found.is_file() {
        let kind = kind(found.file_type());
        let what = format!("expected a regular file, found {kind}: name a TOML file");
        return Err(ConfigError::whole(path, what));
    }
    let mut bytes = Vec::new();
    // The file may have grown since its size was asked for.
    let read = Read::by_ref(&mut file)
        .take(MAX_BYTES + 1)
        .read_to_end(&mut bytes);
    read.map_err(failed)?;
    let length = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
    if length > MAX_BYTES {
        let what = format!(
            "expected at most {MAX_BYTES} bytes, found {}: split it over drop-ins, or name another file",
            found.len().max(length)
        );
        return Err(ConfigError::whole(path, what));
    }
    Ok(bytes)
}
