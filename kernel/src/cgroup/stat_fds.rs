//! A cgroup's statistics, read through file descriptors that stay open.
//!
//! Most of the cost of reading a small file is opening and closing it. Kept open, `memory.current` takes a sixth of the
//! time and `memory.stat` three quarters (6.12 under emulation; `examples/costs.rs` measures it). The price is five
//! descriptors a cgroup, and a page of buffer in the kernel for each.

use std::os::fd::OwnedFd;

use rustix::fs::OFlags;

use super::dir::Cgroup;
use super::files::optional;
use crate::buffer::{End, ReadError, read_to_end, with_buffer};
use crate::error::{Error, Operation, Result};
use crate::io::{DevId, IoStat};
use crate::memory::MemoryStat;
use crate::parse::{Parsed, only_number};
use crate::psi::{Psi, PsiResource};
use crate::release::KernelVersion;

/// A cgroup's `memory.current`, `memory.stat`, `io.stat`, `io.pressure` and `memory.pressure`, kept open.
#[derive(Debug)]
pub struct StatFdCache {
    cgroup: Cgroup,
    /// `None` at the root, which has none.
    current: Option<OwnedFd>,
    memory: OwnedFd,
    io: OwnedFd,
    /// Both `None` without PSI.
    io_pressure: Option<OwnedFd>,
    memory_pressure: Option<OwnedFd>,
}

impl StatFdCache {
    /// Opens the files of `cgroup`.
    ///
    /// # Errors
    /// As every reader of [`Cgroup`]; `EMFILE` when the process has no descriptors left.
    pub fn open(cgroup: &Cgroup) -> Result<Self> {
        let open = |file| cgroup.open(file, OFlags::RDONLY);
        let pressure = |resource: PsiResource| optional(open(resource.cgroup_file()));
        Ok(Self {
            current: optional(open(CURRENT))?,
            memory: open(MEMORY)?,
            io: open(IO)?,
            io_pressure: pressure(PsiResource::Io)?,
            memory_pressure: pressure(PsiResource::Memory)?,
            cgroup: cgroup.clone(),
        })
    }

    /// The cgroup whose files these are.
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
    pub fn memory_stat(&self) -> Result<MemoryStat> {
        self.read(&self.memory, MEMORY, MemoryStat::parse)
    }

    /// `io.stat`.
    ///
    /// # Errors
    /// As [`Cgroup::io_stat`]; `ENODEV` when the controller was disabled meanwhile.
    pub fn io_stat(&self) -> Result<Vec<(DevId, IoStat)>> {
        self.read(&self.io, IO, IoStat::parse)
    }

    /// `io.pressure`; `None` without PSI.
    ///
    /// # Errors
    /// As [`Cgroup::pressure`].
    pub fn io_pressure(&self) -> Result<Option<Psi>> {
        self.pressure(self.io_pressure.as_ref(), PsiResource::Io)
    }

    /// `memory.pressure`; `None` without PSI.
    ///
    /// # Errors
    /// As [`Cgroup::pressure`].
    pub fn memory_pressure(&self) -> Result<Option<Psi>> {
        self.pressure(self.memory_pressure.as_ref(), PsiResource::Memory)
    }

    fn pressure(&self, fd: Option<&OwnedFd>, resource: PsiResource) -> Result<Option<Psi>> {
        let read = |fd| self.read(fd, resource.cgroup_file(), Psi::parse);
        fd.map(read).transpose()
    }

    fn read<T>(
        &self,
        fd: &OwnedFd,
        file: &str,
        parse: impl FnOnce(&[u8]) -> Parsed<T>,
    ) -> Result<T> {
        pread_file(&self.cgroup, fd, file, parse)
    }
}

/// Reads a cgroup's `file`, open as `fd`, from its start.
pub(super) fn pread_file<T>(
    cgroup: &Cgroup,
    fd: &OwnedFd,
    file: &str,
    parse: impl FnOnce(&[u8]) -> Parsed<T>,
) -> Result<T> {
    with_buffer(|buffer| {
        read_to_end(fd, buffer, End::ShortRead, true).map_err(|error| match error {
            ReadError::Errno(errno) => cgroup.failed(Operation::Read, Some(file), errno),
            ReadError::TooLarge => error.at(cgroup.full_path().join(file)),
        })?;
        parse(buffer).map_err(|source| Error::Parse {
            path: cgroup.full_path().join(file),
            source,
        })
    })
}

const CURRENT: &str = "memory.current";
const MEMORY: &str = "memory.stat";
const IO: &str = "io.stat";

// Flushing the kernel's per-CPU memory counters of a cgroup (rstat).

/// The first release in which each controller's counters are flushed separately. Before it, reading any of a cgroup's
/// `*.stat` files flushes all of them.
const SEPARATE_FLUSH: KernelVersion = KernelVersion::new(6, 16);

/// A file of a cgroup, kept open, whose reading makes the kernel sum up its per-CPU counters.
///
/// The kernel itself goes by these sums, above all in the dirty throttle (`balance_dirty_pages`), and does not flush them
/// for that: `mem_cgroup_wb_stats` does so only when two seconds have passed. Until then a writer is let through, and it is
/// throttled for as long after.
#[derive(Debug)]
pub struct StatFlusher {
    cgroup: Cgroup,
    file: &'static str,
    fd: OwnedFd,
}

impl StatFlusher {
    /// Opens the cheapest such file of `cgroup` on a kernel of this version. An unknown version is taken for a new one.
    ///
    /// # Errors
    /// As every reader of [`Cgroup`]; `EMFILE` when the process has no descriptors left.
    pub fn open(cgroup: &Cgroup, version: Option<KernelVersion>) -> Result<Self> {
        let file = match version {
            Some(version) if version < SEPARATE_FLUSH => "cpu.stat",
            _ => "memory.stat",
        };
        Ok(Self {
            cgroup: cgroup.clone(),
            file,
            fd: cgroup.open(file, OFlags::RDONLY)?,
        })
    }

    /// Flushes the counters of the cgroup and of those below it.
    ///
    /// # Errors
    /// When the cgroup is gone.
    pub fn flush(&self) -> Result<()> {
        // The text itself is not needed.
        pread_file(&self.cgroup, &self.fd, self.file, |_| Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cgroup::fs::CgroupFs;

    const GOOD: &str = "anon 1\nfile 2\ninactive_file 3\nactive_file 4\n";
    const PRESSURE: &str = "some avg10=0.00 avg60=0.00 avg300=0.00 total=7\n";

    fn tree() -> (tempfile::TempDir, Cgroup, Cgroup) {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("a")).unwrap();
        let root = CgroupFs::open_fixture(dir.path()).unwrap().root().clone();
        let a = root.child("a".as_ref()).unwrap();
        (dir, root, a)
    }

    #[test]
    fn every_read_sees_the_present_content() {
        let (dir, root, a) = tree();
        let write = |file: &str, text: &str| std::fs::write(dir.path().join(file), text).unwrap();
        write("a/memory.stat", GOOD);
        write("a/memory.current", "7\n");
        write("a/io.stat", "");
        write("a/io.pressure", PRESSURE);
        write("a/memory.pressure", PRESSURE);
        let files = StatFdCache::open(&a).unwrap();
        assert_eq!(files.cgroup().id(), a.id());
        assert_eq!(files.current().unwrap(), Some(7));
        assert_eq!(files.memory_stat().unwrap().file, 2);
        assert_eq!(files.io_stat().unwrap(), []);
        write("a/memory.current", "1234\n");
        write(
            "a/io.stat",
            "8:0 rbytes=5 wbytes=0 rios=1 wios=0 dbytes=0 dios=0\n",
        );
        write("a/memory.pressure", &PRESSURE.replace('7', "9"));
        assert_eq!(files.current().unwrap(), Some(1234));
        assert_eq!(files.io_stat().unwrap()[0].1.rbytes, 5);
        assert_eq!(files.io_pressure().unwrap().unwrap().some.total, 7);
        assert_eq!(files.memory_pressure().unwrap().unwrap().some.total, 9);

        write("memory.stat", GOOD);
        write("io.stat", "");
        let files = StatFdCache::open(&root).unwrap();
        assert_eq!(files.current().unwrap(), None);
        assert_eq!(files.io_pressure().unwrap(), None, "no PSI");
        assert_eq!(files.memory_pressure().unwrap(), None, "no PSI");
        assert_eq!(files.memory_stat().unwrap().anon, 1);
    }

    #[test]
    fn failures_are_those_of_the_readers() {
        let (dir, _root, a) = tree();
        let write = |file: &str, text: &str| std::fs::write(dir.path().join(file), text).unwrap();
        write("a/memory.stat", "anon\n");
        assert!(StatFdCache::open(&a).unwrap_err().is_missing());
        write("a/io.stat", "8:0 rbytes=x\n");
        write("a/memory.current", "max\n");
        let files = StatFdCache::open(&a).unwrap();
        assert!(matches!(files.memory_stat(), Err(Error::Parse { .. })));
        assert!(matches!(files.io_stat(), Err(Error::Parse { .. })));
        let error = files.current().unwrap_err();
        assert!(error.path().ends_with("a/memory.current"), "{error}");
        std::fs::remove_dir_all(dir.path().join("a")).unwrap();
        assert!(StatFdCache::open(&a).unwrap_err().is_gone());
    }

    #[test]
    fn the_file_depends_on_the_release() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        std::fs::create_dir(&path).unwrap();
        let fs = CgroupFs::open_fixture(dir.path()).unwrap();
        let a = fs.root().child("a".as_ref()).unwrap();
        std::fs::write(path.join("cpu.stat"), "usage_usec 0\n").unwrap();
        StatFlusher::open(&a, Some(KernelVersion::new(6, 12)))
            .unwrap()
            .flush()
            .unwrap();
        for version in [
            Some(KernelVersion::new(6, 16)),
            Some(KernelVersion::new(7, 0)),
            None,
        ] {
            assert!(StatFlusher::open(&a, version).unwrap_err().is_missing());
        }
        std::fs::write(path.join("memory.stat"), "").unwrap();
        StatFlusher::open(&a, None).unwrap().flush().unwrap();
        std::fs::remove_dir_all(path).unwrap();
        assert!(StatFlusher::open(&a, None).unwrap_err().is_gone());
    }
}
