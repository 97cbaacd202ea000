//! Writing and reading whole files.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Writes a file of `size` bytes, `buffer` at a time.
///
/// # Errors
/// It cannot be created or written.
pub(crate) fn write_file(path: &Path, size: u64, buffer: &[u8]) -> io::Result<()> {
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .open(path)?;
    let mut offset = 0;
    while offset < size {
        let length = usize::try_from(size - offset)
            .unwrap_or(usize::MAX)
            .min(buffer.len());
        let chunk = buffer.get(..length).unwrap_or(buffer);
        file.write_all_at(chunk, offset)?;
        offset += u64::try_from(chunk.len()).unwrap_or(u64::MAX);
    }
    Ok(())
}

/// Reads a file once, `buffer` at a time; the bytes that it had.
///
/// # Errors
/// It cannot be opened or read.
pub(crate) fn read_file(path: &Path, buffer: &mut [u8]) -> io::Result<u64> {
    let file = File::open(path)?;
    let mut offset = 0;
    loop {
        match file.read_at(buffer, offset)? {
            0 => return Ok(offset),
            n => offset += u64::try_from(n).unwrap_or(u64::MAX),
        }
    }
}
