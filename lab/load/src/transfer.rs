//! Reads and writes that count their bytes as they are transferred.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

/// Opens a file to read and write, past the page cache or not; anew, empty.
///
/// # Errors
/// It cannot be opened so.
pub(crate) fn open(path: &Path, direct: bool, anew: bool) -> io::Result<File> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(anew)
        .truncate(anew)
        .custom_flags(if direct { libc::O_DIRECT } else { 0 })
        .open(path)
}

/// Writes all of `chunk`, counting what is accepted as it is; the bytes written.
pub(crate) fn write_all(
    file: &File,
    chunk: &[u8],
    offset: u64,
    written: &AtomicU64,
) -> io::Result<u64> {
    let mut done = 0;
    while let Some(rest) = chunk.get(done..).filter(|rest| !rest.is_empty()) {
        let at = offset + u64::try_from(done).unwrap_or(u64::MAX);
        match file.write_at(rest, at) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(n) => {
                done += n;
                written.fetch_add(u64::try_from(n).unwrap_or(u64::MAX), Ordering::Relaxed);
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(u64::try_from(done).unwrap_or(u64::MAX))
}

/// Reads once, counting what came; 0 at the end of the file.
pub(crate) fn read(
    file: &File,
    buffer: &mut [u8],
    offset: u64,
    counter: &AtomicU64,
) -> io::Result<u64> {
    loop {
        match file.read_at(buffer, offset) {
            Ok(n) => {
                let n = u64::try_from(n).unwrap_or(u64::MAX);
                counter.fetch_add(n, Ordering::Relaxed);
                return Ok(n);
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}
