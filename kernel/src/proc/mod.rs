//! The machine as a whole: `/proc/meminfo`, `/proc/vmstat`, `/proc/zoneinfo`, `/proc/pressure`.

pub mod process;
mod zoneinfo;

pub use zoneinfo::{Marks, Zone, Zoneinfo};

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};

use crate::PAGE_SIZE;
use crate::buffer::{End, read_to_end, with_buffer};
use crate::error::{Error, Operation, Result};
use crate::parse::{self, ParseError, Parsed};
use crate::psi::{Psi, PsiResource};

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

/// Memory of the whole machine, in bytes.
///
/// `mem_total`, `mem_free` and `mem_available` must be there; of the rest, a missing line is 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(
    missing_docs,
    reason = "the kernel's own names, explained in its documentation"
)]
pub struct Meminfo {
    pub mem_total: u64,
    pub mem_free: u64,
    pub mem_available: u64,
    pub active_anon: u64,
    pub inactive_anon: u64,
    pub active_file: u64,
    pub dirty: u64,
    pub writeback: u64,
    pub mapped: u64,
    pub shmem: u64,
    pub slab_reclaimable: u64,
    pub swap_total: u64,
    pub swap_free: u64,
}

impl Meminfo {
    /// Reads `MemTotal:   1008084 kB` and so on; unknown lines are passed over.
    ///
    /// # Errors
    /// When a required line is missing or a known one is no number of kB that a `u64` of bytes
    /// holds.
    pub fn parse(text: &[u8]) -> Parsed<Self> {
        let mut info = Self::default();
        let mut required = 0_u8;
        for (number, line) in parse::lines(text) {
            let Some((key, value)) = parse::cut(line, b':') else {
                return Err(ParseError::new(number, "`Name: NUMBER kB`", line));
            };
            let field = match key {
                b"MemTotal" => {
                    required |= 1;
                    &mut info.mem_total
                }
                b"MemFree" => {
                    required |= 2;
                    &mut info.mem_free
                }
                b"MemAvailable" => {
                    required |= 4;
                    &mut info.mem_available
                }
                b"Active(anon)" => &mut info.active_anon,
                b"Inactive(anon)" => &mut info.inactive_anon,
                b"Active(file)" => &mut info.active_file,
                b"Dirty" => &mut info.dirty,
                b"Writeback" => &mut info.writeback,
                b"Mapped" => &mut info.mapped,
                b"Shmem" => &mut info.shmem,
                b"SReclaimable" => &mut info.slab_reclaimable,
                b"SwapTotal" => &mut info.swap_total,
                b"SwapFree" => &mut info.swap_free,
                _ => continue,
            };
            *field = kilobytes(value)
                .ok_or_else(|| ParseError::new(number, "`Name: NUMBER kB`", line))?;
        }
        if required == 7 {
            Ok(info)
        } else {
            const REQUIRED: &str = "MemTotal, MemFree and MemAvailable";
            Err(ParseError::new(1, REQUIRED, text))
        }
    }
}

fn kilobytes(value: &[u8]) -> Option<u64> {
    let mut words = parse::words(value);
    let number = parse::number(words.next()?)?;
    (words.next()? == b"kB" && words.next().is_none())
        .then(|| number.checked_mul(1024))
        .flatten()
}

/// Page counts and, since boot, page events of the whole machine. Amounts in pages.
///
/// `nr_free_pages` must be there; of the rest, a missing line is 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the kernel's own names")]
pub struct Vmstat {
    pub nr_free_pages: u64,
    pub nr_inactive_file: u64,
    pub nr_active_file: u64,
    /// File pages and pages of shared memory that processes have mapped.
    pub nr_mapped: u64,
    pub nr_dirty: u64,
    pub nr_writeback: u64,
    pub nr_slab_reclaimable: u64,
    pub pgsteal_kswapd: u64,
    pub pgsteal_direct: u64,
    /// By `memory.reclaim` of the root and the like, from 6.15 on; before, it was among [`pgsteal_direct`](Self::pgsteal_direct).
    pub pgsteal_proactive: u64,
    pub pgsteal_file: u64,
    /// Pages that were moved to an active list: files' pages at their second use.
    pub pgactivate: u64,
    pub workingset_refault_file: u64,
    pub oom_kill: u64,
}

impl Vmstat {
    /// Bytes of file pages on the LRU lists.
    #[must_use]
    pub const fn file_lru(&self) -> u64 {
        let pages = self.nr_inactive_file.saturating_add(self.nr_active_file);
        pages.saturating_mul(PAGE_SIZE)
    }

    /// Bytes of file pages on the LRU lists that no process has mapped, as the kernel's own `min_unmapped_ratio` counts them
    /// (`node_unmapped_file_pages` in mm/vmscan.c): too few by what is mapped of shared memory, which is on other lists.
    #[must_use]
    pub const fn unmapped(&self) -> u64 {
        let mapped = self.nr_mapped.saturating_mul(PAGE_SIZE);
        self.file_lru().saturating_sub(mapped)
    }

    /// Reads `nr_free_pages 210351` and so on; unknown lines are passed over.
    ///
    /// # Errors
    /// When `nr_free_pages` is missing or the value of a known key is no number.
    pub fn parse(text: &[u8]) -> Parsed<Self> {
        let mut stat = Self::default();
        let mut found = false;
        for line in parse::keyed(text) {
            let line = line?;
            let field = match line.key {
                b"nr_free_pages" => {
                    found = true;
                    &mut stat.nr_free_pages
                }
                b"nr_inactive_file" => &mut stat.nr_inactive_file,
                b"nr_active_file" => &mut stat.nr_active_file,
                b"nr_mapped" => &mut stat.nr_mapped,
                b"nr_dirty" => &mut stat.nr_dirty,
                b"nr_writeback" => &mut stat.nr_writeback,
                b"nr_slab_reclaimable" => &mut stat.nr_slab_reclaimable,
                b"pgsteal_kswapd" => &mut stat.pgsteal_kswapd,
                b"pgsteal_direct" => &mut stat.pgsteal_direct,
                b"pgsteal_proactive" => &mut stat.pgsteal_proactive,
                b"pgsteal_file" => &mut stat.pgsteal_file,
                b"pgactivate" => &mut stat.pgactivate,
                b"workingset_refault_file" => &mut stat.workingset_refault_file,
                b"oom_kill" => &mut stat.oom_kill,
                _ => continue,
            };
            *field = line.value()?;
        }
        if found {
            Ok(stat)
        } else {
            Err(ParseError::new(1, "a line `nr_free_pages PAGES`", text))
        }
    }
}

/// One more than the highest page frame number of any zone: memory that is not there between two zones counts.
///
/// # Errors
/// When there is no zone that spans any.
pub fn frames(text: &[u8]) -> Parsed<u64> {
    let (mut highest, mut spanned) = (0, 0);
    for (_, line) in parse::lines(text) {
        let mut words = parse::words(line);
        let (name, value) = (words.next(), words.next().and_then(parse::number));
        match (name, value) {
            (Some(b"spanned"), Some(pages)) => spanned = pages,
            // The last line of a zone.
            (Some(b"start_pfn:"), Some(start)) if spanned > 0 => {
                highest = highest.max(spanned.saturating_add(start));
                spanned = 0;
            }
            _ => {}
        }
    }
    if highest == 0 {
        return Err(ParseError::new(1, "a zone that spans page frames", text));
    }
    Ok(highest)
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

    #[test]
    fn bytes_from_kilobytes() {
        let info = Meminfo::parse(
            b"MemTotal:  10 kB\nMemFree:  4 kB\nMemAvailable: 6 kB\nHugePages_Total:       0\nActive(file):   2 kB\n",
        )
        .unwrap();
        assert_eq!((info.mem_total, info.mem_free), (10_240, 4_096));
        assert_eq!((info.active_file, info.swap_total), (2_048, 0));
    }

    #[test]
    fn wrong_lines_are_refused() {
        let rest = "MemFree: 4 kB\nMemAvailable: 6 kB\n";
        for bad in [
            "",
            "MemTotal 1 kB\n",
            "MemTotal: 1\n",
            "MemTotal: 1 MB\n",
            "MemTotal: -1 kB\n",
            "MemTotal: 18446744073709551615 kB\n",
            "MemTotal: 1 kB kB\n",
        ] {
            let text = format!("{rest}{bad}");
            assert!(Meminfo::parse(text.as_bytes()).is_err(), "{bad}");
        }
    }

    #[test]
    fn file_pages_on_the_lru_lists_are_summed_in_bytes() {
        let stat =
            Vmstat::parse(b"nr_free_pages 7\nnr_inactive_file 2\nnr_active_file 3\nhtlb x\n")
                .unwrap();
        assert_eq!(stat.file_lru(), 5 * 4096);
    }

    #[test]
    fn wrong_values_are_refused() {
        for bad in [
            "",
            "oom_kill 1\n",
            "nr_free_pages\n",
            "nr_free_pages -1\n",
            "nr_free_pages 1\noom_kill \n",
        ] {
            assert!(Vmstat::parse(bad.as_bytes()).is_err(), "{bad}");
        }
    }

    #[test]
    fn the_end_of_the_last_zone_counts() {
        let text = b"Node 0, zone      DMA\n  pages free     2816\n        spanned  4095\n        present  3998\n  start_pfn:           1\nNode 0, zone   Normal\n        spanned  262144\n  start_pfn:           1048576\nNode 0, zone  Movable\n        spanned  0\n  start_pfn:           0\n";
        assert_eq!(frames(text), Ok(1_310_720));
        assert!(frames(b"Node 0\n  start_pfn: 7\n").is_err());
    }
}
