//! Reading whole kernel files into a buffer that each thread reuses.
//!
//! The agent reads thousands of small files a second, so a read must not allocate; and no file may make it read without
//! bound.

use std::cell::Cell;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use rustix::buffer::spare_capacity;
use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;

use crate::error::{Error, Operation, Result};

/// The largest file that is read, in bytes. The zoneinfo of a machine with hundreds of CPUs reaches some hundred KiB.
pub(crate) const LIMIT: usize = 4 << 20;

/// The initial size of a buffer: most files fit, so that one `read` sees their end.
const START: usize = 16 << 10;

/// A buffer that grew beyond this is not kept.
const KEEP: usize = 256 << 10;

thread_local! {
    static BUFFER: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// Runs `body` with this thread's buffer, empty. A nested call gets a fresh one.
pub(crate) fn with_buffer<T>(body: impl FnOnce(&mut Vec<u8>) -> T) -> T {
    let mut buffer = BUFFER.take();
    buffer.clear();
    buffer.reserve(START);
    let result = body(&mut buffer);
    if buffer.capacity() <= KEEP {
        BUFFER.set(buffer);
    }
    result
}

/// How the end of a file is recognised.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// A read that does not fill the buffer reached the end. True of cgroupfs files, which are
    /// one seq_file record each (`kernfs_seq_start` → `single_start`), and it saves a system call.
    ShortRead,
    /// Only a read of nothing is the end. True of procfs files of many records, which are handed
    /// out a page at a time.
    Nothing,
}

/// Why a read failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadError {
    Errno(Errno),
    TooLarge,
}

impl ReadError {
    /// The error about the file at `path`.
    pub(crate) fn at(self, path: PathBuf) -> Error {
        match self {
            Self::Errno(errno) => Error::Io {
                operation: Operation::Read,
                path,
                errno,
            },
            Self::TooLarge => Error::TooLarge { path, limit: LIMIT },
        }
    }
}

impl From<Errno> for ReadError {
    fn from(errno: Errno) -> Self {
        Self::Errno(errno)
    }
}

/// Appends the file behind `fd` to `buffer`, from its current offset, or, for a file that is kept
/// open, from its start (`pread`).
pub(crate) fn read_to_end(
    fd: impl AsFd,
    buffer: &mut Vec<u8>,
    end: End,
    kept_open: bool,
) -> std::result::Result<(), ReadError> {
    loop {
        if buffer.len() == buffer.capacity() {
            buffer.reserve(buffer.capacity().max(START));
        }
        let room = buffer.capacity().saturating_sub(buffer.len());
        let offset = u64::try_from(buffer.len()).unwrap_or(u64::MAX);
        let read = if kept_open {
            rustix::io::pread(&fd, spare_capacity(buffer), offset)
        } else {
            rustix::io::read(&fd, spare_capacity(buffer))
        };
        match read {
            Ok(0) => return Ok(()),
            Ok(_) if buffer.len() > LIMIT => return Err(ReadError::TooLarge),
            Ok(count) if count < room && end == End::ShortRead => return Ok(()),
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// Reads the whole file at `path` and hands its text to `parse`.
pub(crate) fn read_path<T>(path: &Path, parse: impl FnOnce(&[u8]) -> T) -> Result<T> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let file = rustix::fs::openat(CWD, path, flags, Mode::empty()).map_err(|errno| Error::Io {
        operation: Operation::Open,
        path: path.to_owned(),
        errno,
    })?;
    with_buffer(|buffer| {
        read_to_end(&file, buffer, End::Nothing, false)
            .map_err(|error| error.at(path.to_owned()))?;
        Ok(parse(buffer))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn read(content: &[u8], end: End) -> std::result::Result<Vec<u8>, ReadError> {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(content).unwrap();
        let file = std::fs::File::open(file.path()).unwrap();
        with_buffer(|buffer| {
            read_to_end(&file, buffer, end, true)?;
            let first = buffer.clone();
            buffer.clear();
            read_to_end(&file, buffer, end, false)?;
            assert_eq!(&first, buffer);
            Ok(first)
        })
    }

    #[test]
    fn reads_every_size_up_to_the_limit() {
        for size in [0, 1, START - 1, START, START + 1, 300 << 10, LIMIT] {
            for end in [End::ShortRead, End::Nothing] {
                assert_eq!(read(&vec![7; size], end).unwrap().len(), size);
            }
        }
    }

    #[test]
    fn refuses_a_huge_file() {
        assert_eq!(
            read(&vec![7; LIMIT + 1], End::Nothing),
            Err(ReadError::TooLarge)
        );
        assert_eq!(
            read(&vec![7; LIMIT + 1], End::ShortRead),
            Err(ReadError::TooLarge)
        );
    }

    #[test]
    fn reads_by_path() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        assert!(read_path(&path, <[u8]>::len).unwrap_err().is_missing());
        std::fs::write(&path, "abc").unwrap();
        assert_eq!(read_path(&path, <[u8]>::len).unwrap(), 3);
    }

    #[test]
    fn nested_use_gets_its_own_buffer() {
        with_buffer(|outer| {
            outer.push(1);
            with_buffer(|inner| assert!(inner.is_empty()));
            assert_eq!(outer, &[1]);
        });
    }
}
