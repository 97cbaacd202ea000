//! Reads the text of one configuration file: a regular file of bounded size.

use std::io::ErrorKind;
use std::path::Path;

use super::error::ConfigError;

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
    justitia_common::regular_file::read(path, MAX_BYTES).map_err(|error| {
        let what = match error.kind() {
            // It says what was expected and what stands there.
            ErrorKind::Other => format!("{error}: name a TOML file of at most 1 MiB"),
            _ => format!("cannot be read: {error}"),
        };
        ConfigError::whole(path, what)
    })
}
