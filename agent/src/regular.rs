//! Regular files where a pipe, a device or a link may stand: none of them holds up who opens it, or leads elsewhere.

use std::fs::{File, FileType};
use std::io::{Error, Result};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use rustix::fs::{Mode, OFlags};

/// Opens the regular file at `path` itself, not where a link leads; with `CREATE`, mode 0600.
///
/// # Errors
/// What was expected, what stands there, and what to do; or what the system said.
pub fn open(path: &Path, flags: OFlags) -> Result<File> {
    // A pipe without a writer holds up who opens it.
    let flags = flags | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOFOLLOW;
    let opened = rustix::fs::open(path, flags, Mode::from_raw_mode(0o600)).map(File::from);
    let found = match &opened {
        Ok(file) => file.metadata(),
        // A link or a socket cannot be opened at all: say that, and not that there are too many links.
        Err(_) => std::fs::symlink_metadata(path),
    };
    match found {
        Ok(found) if !found.is_file() => Err(Error::other(format!(
            "expected a regular file, found {}: see who has put it there, and remove it",
            kind(found.file_type())
        ))),
        _ => Ok(opened?),
    }
}

/// What stands where a regular file was expected.
pub fn kind(found: FileType) -> &'static str {
    if found.is_dir() {
        "a directory"
    } else if found.is_symlink() {
        "a symbolic link"
    } else if found.is_fifo() {
        "a pipe"
    } else if found.is_socket() {
        "a socket"
    } else if found.is_char_device() || found.is_block_device() {
        "a device"
    } else {
        "something else"
    }
}
