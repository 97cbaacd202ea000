//! One configuration file's text: of a regular file, and bounded.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use rustix::fs::{Mode, OFlags};

use super::ConfigError;
use crate::regular::kind;

/// The largest configuration file, bytes: some ten thousand rules.
const LARGEST: u64 = 1 << 20;

/// Reads `path`. Neither a pipe nor a device can hold this up, and no file can fill the memory.
///
/// # Errors
/// What was expected and what was found.
pub fn read(path: &Path) -> Result<String, ConfigError> {
    let failed = |e: std::io::Error| error(path, 0, format!("cannot be read: {e}"));
    // A pipe without a writer holds up who opens it.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let mut file =
        File::from(rustix::fs::open(path, flags, Mode::empty()).map_err(|e| failed(e.into()))?);
    let found = file.metadata().map_err(failed)?;
    if !found.is_file() {
        let kind = kind(found.file_type());
        return Err(error(
            path,
            0,
            format!("expected a regular file, found {kind}: name a TOML file"),
        ));
    }
    let mut text = Vec::new();
    // The size that is announced need not be the one that is read.
    let read = Read::by_ref(&mut file)
        .take(LARGEST + 1)
        .read_to_end(&mut text);
    read.map_err(failed)?;
    let length = u64::try_from(text.len()).unwrap_or(u64::MAX);
    if length > LARGEST {
        let length = found.len().max(length);
        return Err(error(
            path,
            0,
            format!(
                "expected at most {LARGEST} bytes, found {length}: split it over drop-ins, or name another file"
            ),
        ));
    }
    String::from_utf8(text).map_err(|e| {
        let valid = e
            .as_bytes()
            .get(..e.utf8_error().valid_up_to())
            .unwrap_or_default();
        let line = 1 + valid.iter().filter(|b| **b == b'\n').count();
        error(
            path,
            line,
            "expected text in UTF-8, found other bytes: save it as UTF-8".to_owned(),
        )
    })
}

/// What is wrong with `path`.
pub fn error(path: &Path, line: usize, what: String) -> ConfigError {
    ConfigError {
        path: path.to_owned(),
        line,
        what,
    }
}
