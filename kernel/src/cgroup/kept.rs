//! A cgroup's memory figures from files that stay open, for those who read them often.
//!
//! Opening and closing is most of what a small file costs. Kept open, `memory.current` takes a
//! sixth of the time and `memory.stat` three quarters, the rest of which is the kernel's formatting
//! (6.12 under emulation; `examples/costs.rs` measures it anywhere). The price is two descriptors a
//! cgroup and, in the kernel, a page of buffer for each.

use std::os::fd::OwnedFd;

use rustix::fs::OFlags;

use super::Cgroup;
use crate::buffer::{End, ReadError, read_to_end, with_buffer};
use crate::error::{Error, Operation, Result};
use crate::memory::MemoryStat;
use crate::parse::{Parsed, only_number};

/// A cgroup's `memory.current` and `memory.stat`, kept open.
///
/// Read `current` first: while it stands still, so does nearly everything in `stat`.
#[derive(Debug)]
pub struct MemoryFiles {
    cgroup: Cgroup,
    /// `None` at the root, which has none.
    current: Option<OwnedFd>,
    stat: OwnedFd,
}

impl MemoryFiles {
    /// Opens the files of `cgroup`.
    ///
    /// # Errors
    /// As every reader of [`Cgroup`]; `EMFILE` when the process has no descriptors left.
    pub fn open(cgroup: &Cgroup) -> Result<Self> {
        let current = match cgroup.open(CURRENT, OFlags::RDONLY) {
            Ok(fd) => Some(fd),
            Err(error) if error.is_missing() && cgroup.is_root() => None,
            Err(error) => return Err(error),
        };
        Ok(Self {
            stat: cgroup.open(STAT, OFlags::RDONLY)?,
            current,
            cgroup: cgroup.clone(),
        })
    }

    /// Whose files these are.
    #[must_use]
    pub const fn cgroup(&self) -> &Cgroup {
        &self.cgroup
    }

    /// `memory.current`, in bytes; `None` at the root.
    ///
    /// # Errors
    /// As [`Cgroup::memory_current`]; `ENODEV` when the controller was disabled meanwhile.
    pub fn current(&self) -> Result<Option<u64>> {
        let read = |fd| self.read(fd, CURRENT, only_number);
        self.current.as_ref().map(read).transpose()
    }

    /// `memory.stat`.
    ///
    /// # Errors
    /// As [`Cgroup::memory_stat`]; `ENODEV` when the controller was disabled meanwhile.
    pub fn stat(&self) -> Result<MemoryStat> {
        self.read(&self.stat, STAT, MemoryStat::parse)
    }

    fn read<T>(
        &self,
        fd: &OwnedFd,
        file: &str,
        parse: impl FnOnce(&[u8]) -> Parsed<T>,
    ) -> Result<T> {
        with_buffer(|buffer| {
            read_to_end(fd, buffer, End::ShortRead, true).map_err(|error| match error {
                ReadError::Errno(errno) => self.cgroup.failed(Operation::Read, Some(file), errno),
                ReadError::TooLarge => error.at(self.cgroup.full_path().join(file)),
            })?;
            parse(buffer).map_err(|source| Error::Parse {
                path: self.cgroup.full_path().join(file),
                source,
            })
        })
    }
}

const CURRENT: &str = "memory.current";
const STAT: &str = "memory.stat";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cgroup::CgroupFs;

    const GOOD: &str = "anon 1\nfile 2\ninactive_file 3\nactive_file 4\n";

    fn tree() -> (tempfile::TempDir, Cgroup, Cgroup) {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("a")).unwrap();
        let root = CgroupFs::open_fixture(dir.path(), true)
            .unwrap()
            .root()
            .clone();
        let a = root.child("a".as_ref()).unwrap();
        (dir, root, a)
    }

    #[test]
    fn reads_what_stands_now() {
        let (dir, root, a) = tree();
        std::fs::write(dir.path().join("a/memory.stat"), GOOD).unwrap();
        std::fs::write(dir.path().join("a/memory.current"), "7\n").unwrap();
        let files = MemoryFiles::open(&a).unwrap();
        assert_eq!(files.cgroup().id(), a.id());
        assert_eq!(
            (files.current().unwrap(), files.stat().unwrap().file),
            (Some(7), 2)
        );
        std::fs::write(dir.path().join("a/memory.current"), "1234\n").unwrap();
        assert_eq!(files.current().unwrap(), Some(1234));

        std::fs::write(dir.path().join("memory.stat"), GOOD).unwrap();
        let files = MemoryFiles::open(&root).unwrap();
        assert_eq!(files.current().unwrap(), None);
        assert_eq!(files.stat().unwrap().anon, 1);
    }

    #[test]
    fn failures_are_those_of_the_readers() {
        let (dir, _root, a) = tree();
        assert!(MemoryFiles::open(&a).unwrap_err().is_missing());
        std::fs::write(dir.path().join("a/memory.stat"), "anon\n").unwrap();
        std::fs::write(dir.path().join("a/memory.current"), "max\n").unwrap();
        let files = MemoryFiles::open(&a).unwrap();
        assert!(matches!(files.stat(), Err(Error::Parse { .. })));
        let error = files.current().unwrap_err();
        assert!(error.path().ends_with("a/memory.current"), "{error}");
        std::fs::remove_dir_all(dir.path().join("a")).unwrap();
        assert!(MemoryFiles::open(&a).unwrap_err().is_gone());
    }
}
