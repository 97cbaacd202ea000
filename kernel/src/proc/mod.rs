//! The machine as a whole: `/proc/meminfo`, `/proc/vmstat`, `/proc/zoneinfo`, `/proc/pressure`.

mod frames;
mod meminfo;
mod vmstat;
mod zoneinfo;

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};

use crate::buffer::{End, read_to_end, with_buffer};
use crate::error::{Error, Operation, Result};
use crate::parse::{self, ParseError, Parsed};
use crate::psi::{Psi, PsiResource};

pub use frames::frames;
pub use meminfo::Meminfo;
pub use vmstat::Vmstat;
pub use zoneinfo::{Marks, Zone, Zoneinfo};

/// A `/proc`, or a directory that looks like one. The files that are read often stay open and are
/// read with `pread`.
#[derive(Debug)]
pub struct ProcFs {
    path: PathBuf,
    directory: OwnedFd,
    meminfo: OwnedFd,
    vmstat: OwnedFd,
}

impl ProcFs {
    /// The procfs at `path`, usually `/proc`.
    ///
    /// # Errors
    /// When the directory, its `meminfo` or its `vmstat` cannot be opened.
    pub fn open(path: &Path) -> Result<Self> {
        let directory = rustix::fs::openat(
            rustix::fs::CWD,
            path,
            OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
            Mode::empty(),
        )
        .map_err(|errno| Error::Io {
            operation: Operation::Open,
            path: path.to_owned(),
            errno,
        })?;
        Ok(Self {
            meminfo: open(&directory, path, "meminfo")?,
            vmstat: open(&directory, path, "vmstat")?,
            path: path.to_owned(),
            directory,
        })
    }

    /// `meminfo`, in bytes.
    ///
    /// # Errors
    /// When it cannot be read or parsed.
    pub fn meminfo(&self) -> Result<Meminfo> {
        // One record (single_open): a short read is its end.
        self.parse(&self.meminfo, "meminfo", End::ShortRead, Meminfo::parse)
    }

    /// `vmstat`, in pages and events.
    ///
    /// # Errors
    /// When it cannot be read or parsed.
    pub fn vmstat(&self) -> Result<Vmstat> {
        self.parse(&self.vmstat, "vmstat", End::Nothing, Vmstat::parse)
    }

    /// `zoneinfo`, in pages. Long on machines with many CPUs: not for every interval.
    ///
    /// # Errors
    /// When it cannot be read or parsed.
    pub fn zoneinfo(&self) -> Result<Zoneinfo> {
        let fd = open(&self.directory, &self.path, "zoneinfo")?;
        self.parse(&fd, "zoneinfo", End::Nothing, Zoneinfo::parse)
    }

    /// `sys/vm/swappiness`, 0 to 200.
    ///
    /// # Errors
    /// When it cannot be read or parsed.
    pub fn swappiness(&self) -> Result<u8> {
        let file = "sys/vm/swappiness";
        let fd = open(&self.directory, &self.path, file)?;
        self.parse(&fd, file, End::ShortRead, |text| {
            const EXPECTED: &str = "a number from 0 to 200";
            let value = parse::only_number(text)?;
            u8::try_from(value)
                .ok()
                .filter(|value| *value <= 200)
                .ok_or_else(|| ParseError::new(1, EXPECTED, text))
        })
    }

    /// The pressure on the whole machine.
    ///
    /// # Errors
    /// When it cannot be read or parsed; `EOPNOTSUPP` or a missing file when PSI is off.
    pub fn pressure(&self, resource: PsiResource) -> Result<Psi> {
        let file = resource.proc_file();
        let fd = open(&self.directory, &self.path, file)?;
        self.parse(&fd, file, End::ShortRead, Psi::parse)
    }

    fn parse<T>(
        &self,
        fd: &OwnedFd,
        file: &str,
        end: End,
        parse: impl FnOnce(&[u8]) -> Parsed<T>,
    ) -> Result<T> {
        with_buffer(|buffer| {
            let path = || self.path.join(file);
            read_to_end(fd, buffer, end, true).map_err(|error| error.at(path()))?;
            parse(buffer).map_err(|source| Error::Parse {
                path: path(),
                source,
            })
        })
    }
}

fn open(directory: &OwnedFd, path: &Path, file: &str) -> Result<OwnedFd> {
    rustix::fs::openat(
        directory,
        file,
        OFlags::RDONLY | OFlags::CLOEXEC,
        Mode::empty(),
    )
    .map_err(|errno| Error::Io {
        operation: Operation::Open,
        path: path.join(file),
        errno,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const PRESSURE: &str = "some avg10=1.00 avg60=0.00 avg300=0.00 total=5\n";

    fn tree() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("pressure")).unwrap();
        for (file, text) in [
            (
                "meminfo",
                "MemTotal: 8 kB\nMemFree: 4 kB\nMemAvailable: 6 kB\n",
            ),
            ("vmstat", "nr_free_pages 1\n"),
            (
                "zoneinfo",
                "Node 0, zone Normal\n pages free 9\n min 1\n low 2\n high 3\n managed 10\n",
            ),
            ("pressure/memory", PRESSURE),
        ] {
            std::fs::write(dir.path().join(file), text).unwrap();
        }
        dir
    }

    #[test]
    fn every_file_is_read_anew() {
        let dir = tree();
        let proc = ProcFs::open(dir.path()).unwrap();
        assert_eq!(proc.meminfo().unwrap().mem_free, 4096);
        assert_eq!(proc.vmstat().unwrap().nr_free_pages, 1);
        assert_eq!(proc.zoneinfo().unwrap().zones.len(), 1);
        assert_eq!(proc.pressure(PsiResource::Memory).unwrap().some.total, 5);
        std::fs::write(dir.path().join("vmstat"), "nr_free_pages 22\n").unwrap();
        assert_eq!(proc.vmstat().unwrap().nr_free_pages, 22);
    }

    #[test]
    fn failures_name_the_file() {
        let dir = tree();
        let proc = ProcFs::open(dir.path()).unwrap();
        let psi = proc.pressure(PsiResource::Io).unwrap_err();
        assert!(psi.is_missing() && psi.path().ends_with("pressure/io"));
        std::fs::write(dir.path().join("meminfo"), "MemTotal: 8 kB\n").unwrap();
        let parse = proc.meminfo().unwrap_err();
        assert!(matches!(parse, Error::Parse { .. }) && parse.path().ends_with("meminfo"));
        std::fs::remove_file(dir.path().join("vmstat")).unwrap();
        assert!(ProcFs::open(dir.path()).unwrap_err().is_missing());
    }

    #[test]
    fn this_machine() {
        let proc = ProcFs::open(Path::new("/proc")).unwrap();
        for _ in 0..2 {
            let memory = proc.meminfo().unwrap();
            assert!(memory.mem_free <= memory.mem_total);
            assert!(proc.vmstat().unwrap().nr_free_pages > 0);
        }
        let zones = proc.zoneinfo().unwrap();
        assert!(zones.marks().low > 0);
    }
}
