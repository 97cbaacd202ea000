//! Opening, reading and writing a cgroup's files.

use std::os::fd::OwnedFd;
use std::path::PathBuf;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::dir::{Cgroup, OPEN};
use crate::buffer::{End, ReadError, read_to_end, with_buffer};
use crate::error::{Error, Operation, Result};
use crate::parse::Parsed;

impl Cgroup {
    /// Opens one of its files.
    pub(crate) fn open(&self, file: &str, flags: OFlags) -> Result<OwnedFd> {
        rustix::fs::openat(self, file, OPEN | flags, Mode::empty())
            .map_err(|errno| self.failed(Operation::Open, Some(file), errno))
    }

    /// Reads one of its files and parses it.
    pub(crate) fn read<T>(&self, file: &str, parse: impl FnOnce(&[u8]) -> Parsed<T>) -> Result<T> {
        let fd = self.open(file, OFlags::RDONLY)?;
        with_buffer(|buffer| {
            read_to_end(&fd, buffer, End::ShortRead, false).map_err(|error| match error {
                ReadError::Errno(errno) => self.failed(Operation::Read, Some(file), errno),
                ReadError::TooLarge => error.at(self.file_path(Some(file))),
            })?;
            parse(buffer).map_err(|source| Error::Parse {
                path: self.file_path(Some(file)),
                source,
            })
        })
    }

    /// Writes one of its files in one `write(2)`, as the kernel wants it.
    pub(crate) fn write(&self, file: &str, text: &str) -> Result<()> {
        let fd = self.open(file, OFlags::WRONLY)?;
        let written = rustix::io::write(&fd, text.as_bytes())
            .map_err(|errno| self.failed(Operation::Write, Some(file), errno))?;
        if written == text.len() {
            Ok(())
        } else {
            Err(Error::ShortWrite {
                path: self.file_path(Some(file)),
                written,
                length: text.len(),
            })
        }
    }

    /// The error for a failed operation. ENOENT and ENODEV have other causes than a removed cgroup
    /// (a controller that is not enabled, a device that does not exist), so ask the directory.
    pub(crate) fn failed(&self, operation: Operation, file: Option<&str>, errno: Errno) -> Error {
        let path = self.file_path(file);
        if matches!(errno, Errno::NOENT | Errno::NODEV) && !self.is_alive() {
            Error::Gone { operation, path }
        } else {
            Error::Io {
                operation,
                path,
                errno,
            }
        }
    }

    fn file_path(&self, file: Option<&str>) -> PathBuf {
        let mut path = self.full_path();
        path.extend(file);
        path
    }
}
