//! The typed readers of a cgroup's files. Their errors: [`Gone`](crate::error::Error::Gone) when the cgroup was removed;
//! one with [`is_missing`](crate::error::Error::is_missing) where the file does not exist, as without its controller;
//! [`Parse`](crate::error::Error::Parse), which quotes the text that was not understood; [`Io`](crate::error::Error::Io) for every other
//! answer of the kernel.

use rustix::fs::OFlags;
use rustix::io::Errno;

use super::dir::Cgroup;
use crate::error::{Operation, Result};
use crate::io::{DevId, IoStat, IoWeight, device_lines};
use crate::memory::{Limit, MemoryEvents, MemoryStat};
use crate::parse::{self, ParseError, Parsed, only_number};
use crate::psi::{Psi, PsiResource};

impl Cgroup {
    /// `memory.stat`, of the cgroup and its descendants. The root has it too.
    ///
    /// # Errors
    /// Gone, missing without the memory controller, or not understood.
    pub fn memory_stat(&self) -> Result<MemoryStat> {
        self.read("memory.stat", MemoryStat::parse)
    }

    /// `vm.dirty_ratio`, of the whole machine, in percent of the available memory: writers are throttled from this part
    /// of dirty pages on. 0 where `vm.dirty_bytes` is set instead.
    ///
    /// # Errors
    /// Missing where `/proc/sys/vm` is not mounted, or not understood.
    pub fn dirty_ratio(&self) -> Result<u64> {
        self.read(&format!("{}/dirty_ratio", self.vm_sysctls()), only_number)
    }

    /// `memory.current`: bytes in use, descendants included. Not at the root.
    ///
    /// # Errors
    /// Gone, missing without the memory controller and at the root, or not understood.
    pub fn memory_current(&self) -> Result<u64> {
        self.read("memory.current", only_number)
    }

    /// `memory.swap.current`: bytes in swap, descendants included. `None` without swap support. Not at the root.
    ///
    /// # Errors
    /// Gone, or not understood.
    pub fn swap_current(&self) -> Result<Option<u64>> {
        optional(self.read("memory.swap.current", only_number))
    }

    /// `memory.swap.max`: no more is swapped out. Not at the root.
    ///
    /// # Errors
    /// Gone, missing without the memory controller or swap support and at the root, or not understood.
    pub fn swap_max(&self) -> Result<Limit> {
        self.read("memory.swap.max", Limit::parse)
    }

    /// `memory.min`: never reclaimed below by the kernel, but by `memory.reclaim` of this cgroup. Not at the root.
    ///
    /// # Errors
    /// Gone, missing without the memory controller and at the root, or not understood.
    pub fn memory_min(&self) -> Result<Limit> {
        self.read("memory.min", Limit::parse)
    }

    /// `memory.low`: reclaimed below only if nothing else is reclaimable. Not at the root.
    ///
    /// # Errors
    /// Gone, missing without the memory controller and at the root, or not understood.
    pub fn memory_low(&self) -> Result<Limit> {
        self.read("memory.low", Limit::parse)
    }

    /// `memory.high`: throttled above. Not at the root.
    ///
    /// # Errors
    /// Gone, missing without the memory controller and at the root, or not understood.
    pub fn memory_high(&self) -> Result<Limit> {
        self.read("memory.high", Limit::parse)
    }

    /// `memory.max`: killed above. Not at the root.
    ///
    /// # Errors
    /// Gone, missing without the memory controller and at the root, or not understood.
    pub fn memory_max(&self) -> Result<Limit> {
        self.read("memory.max", Limit::parse)
    }

    /// `memory.events`: of the cgroup and its descendants, each event counted at the cgroup whose limit or protection it
    /// is about, and at all above. Not at the root. Mounted with `memory_localevents` it counts as
    /// [`memory_events_local`](Self::memory_events_local).
    ///
    /// # Errors
    /// Gone, missing without the memory controller and at the root, or not understood.
    pub fn memory_events(&self) -> Result<MemoryEvents> {
        self.read("memory.events", MemoryEvents::parse)
    }

    /// `memory.events.local`: as [`memory_events`](Self::memory_events), of the cgroup's own limits and protections alone.
    /// Not at the root.
    ///
    /// # Errors
    /// Gone, missing without the memory controller and at the root, or not understood.
    pub fn memory_events_local(&self) -> Result<MemoryEvents> {
        self.read("memory.events.local", MemoryEvents::parse)
    }

    /// `high` of `memory.swap.events`: how often tasks of the cgroup and its descendants were throttled by a
    /// `memory.swap.high`. `None` without swap support. Not at the root.
    ///
    /// # Errors
    /// Gone, or not understood.
    pub fn swap_high_events(&self) -> Result<Option<u64>> {
        let events = optional(self.read("memory.swap.events", MemoryEvents::parse));
        Ok(events?.map(|events| events.high))
    }

    /// The cgroup's pressure file.
    ///
    /// # Errors
    /// Gone, missing without PSI, `EOPNOTSUPP` where `cgroup.pressure` is 0, or not understood.
    pub fn pressure(&self, resource: PsiResource) -> Result<Psi> {
        self.read(resource.cgroup_file(), Psi::parse)
    }

    /// CPU time used, in microseconds (`cpu.stat`, which every cgroup has, whatever is enabled).
    ///
    /// # Errors
    /// Gone, or not understood.
    pub fn cpu_usage_usec(&self) -> Result<u64> {
        self.read("cpu.stat", |text| {
            keyed_number(text, b"usage_usec", "a line `usage_usec MICROSECONDS`")
        })
    }

    /// The devices that `io.max` limits, with their lines (`8:0 rbps=max wbps=1048576 riops=max wiops=max`), in the file's
    /// order. Not at the root.
    ///
    /// # Errors
    /// Gone, or missing without the I/O controller and at the root.
    pub fn io_max(&self) -> Result<Vec<(DevId, String)>> {
        self.read("io.max", |text| Ok(device_lines(text)))
    }

    /// The devices on which `io.latency` has a target, with their lines (`8:0 target=10000`, microseconds), in the file's
    /// order. While the cgroup misses it, the kernel holds back siblings with a larger target, or none. Not at the root.
    ///
    /// # Errors
    /// Gone, or missing without the I/O controller, without `CONFIG_BLK_CGROUP_IOLATENCY`, and at the root.
    pub fn io_latency(&self) -> Result<Vec<(DevId, String)>> {
        self.read("io.latency", |text| Ok(device_lines(text)))
    }

    /// `io.stat`, by device, in the file's order; devices that the cgroup has not used are left
    /// out.
    ///
    /// # Errors
    /// Gone, missing without the io controller, or not understood.
    pub fn io_stat(&self) -> Result<Vec<(DevId, IoStat)>> {
        self.read("io.stat", IoStat::parse)
    }

    /// `io.weight` (io.cost); `None` where the file does not exist: at the root, without the
    /// controller, or on a kernel without io.cost.
    ///
    /// # Errors
    /// Gone, or not understood.
    pub fn io_weight(&self) -> Result<Option<IoWeight>> {
        optional(self.read("io.weight", IoWeight::parse))
    }

    /// `io.bfq.weight`, 1..=1000; `None` where the file does not exist (BFQ is not loaded).
    ///
    /// # Errors
    /// Gone, or not understood.
    pub fn io_bfq_weight(&self) -> Result<Option<IoWeight>> {
        optional(self.read("io.bfq.weight", IoWeight::parse))
    }

    /// `cgroup.events`. Not at the root.
    ///
    /// # Errors
    /// Gone, missing at the root, or not understood.
    pub fn events(&self) -> Result<CgroupEvents> {
        self.read("cgroup.events", CgroupEvents::parse)
    }

    /// How many cgroups are below it, at any depth (`cgroup.stat`).
    ///
    /// # Errors
    /// Gone, or not understood.
    pub fn descendants(&self) -> Result<u64> {
        self.read("cgroup.stat", |text| {
            keyed_number(text, b"nr_descendants", "a line `nr_descendants NUMBER`")
        })
    }

    /// The controllers that this cgroup may enable for its children.
    ///
    /// # Errors
    /// Gone, or a name that no controller has.
    pub fn controllers(&self) -> Result<Controllers> {
        self.read("cgroup.controllers", Controllers::parse)
    }

    /// The controllers that are enabled for its children.
    ///
    /// # Errors
    /// Gone, or a name that no controller has.
    pub fn subtree_control(&self) -> Result<Controllers> {
        self.read("cgroup.subtree_control", Controllers::parse)
    }
}

/// A missing file as `None`.
pub(super) fn optional<T>(result: Result<T>) -> Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.is_missing() => Ok(None),
        Err(error) => Err(error),
    }
}

// The files of the cgroup core (Documentation/admin-guide/cgroup-v2.rst, "Core Interface Files").

/// `cgroup.events`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CgroupEvents {
    /// The cgroup or a descendant holds a process.
    pub populated: bool,
}

impl CgroupEvents {
    /// Reads `populated 1`.
    ///
    /// # Errors
    /// When `populated` is missing or a value is neither 0 nor 1.
    pub fn parse(text: &[u8]) -> Parsed<Self> {
        let mut populated = None;
        for (number, line) in parse::lines(text) {
            if let Some((b"populated", word)) = parse::cut(line, b' ') {
                populated = Some(match word {
                    b"0" => false,
                    b"1" => true,
                    _ => return Err(ParseError::new(number, "0 or 1", line)),
                });
            }
        }
        Ok(Self {
            populated: populated
                .ok_or_else(|| ParseError::new(1, "a line `populated 0` or `1`", text))?,
        })
    }
}

/// The controllers that `cgroup.controllers` or `cgroup.subtree_control` lists.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Controllers(Vec<String>);

impl Controllers {
    /// Reads names separated by blanks; an empty file is an empty list.
    ///
    /// # Errors
    /// When a name holds anything but lower-case letters, digits and `_`.
    pub fn parse(text: &[u8]) -> Parsed<Self> {
        let mut names = Vec::new();
        for (number, line) in parse::lines(text) {
            for word in parse::words(line) {
                let plain =
                    |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || *byte == b'_';
                if !word.iter().all(plain) {
                    return Err(ParseError::new(number, "names of controllers", word));
                }
                names.push(String::from_utf8_lossy(word).into_owned());
            }
        }
        Ok(Self(names))
    }

    /// Whether `controller` is listed.
    #[must_use]
    pub fn has(&self, controller: &str) -> bool {
        self.0.iter().any(|name| name == controller)
    }

    /// Their names, in the file's order.
    pub fn iter(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(String::as_str)
    }
}

/// The value of one key of a flat-keyed file.
pub(super) fn keyed_number(text: &[u8], key: &[u8], expected: &'static str) -> Parsed<u64> {
    parse::lines(text)
        .find_map(|(number, line)| {
            let (found, value) = parse::cut(line, b' ')?;
            (found == key).then(|| {
                parse::number(value).ok_or_else(|| ParseError::new(number, expected, line))
            })
        })
        .unwrap_or_else(|| Err(ParseError::new(1, expected, text)))
}

// The processes of a cgroup: `cgroup.procs`.

const PROCS: &str = "cgroup.procs";

/// Room for several process ids.
const READ_LEN: usize = 64;

impl Cgroup {
    /// Moves the process `pid` into the cgroup: what the kernel allocates for it from now on is charged here. Only for
    /// processes that the caller has started.
    ///
    /// # Errors
    /// As every operation on a cgroup; `EBUSY` when the cgroup has controllers enabled for its children, so that it may
    /// hold no processes.
    pub fn attach_process(&self, pid: u32) -> Result<()> {
        self.write(PROCS, &pid.to_string())
    }

    /// Whether any other process than `pid` is in this very cgroup, descendants aside.
    ///
    /// # Errors
    /// As every operation on a cgroup.
    pub fn has_other_processes(&self, pid: u32) -> Result<bool> {
        // A number that is cut off is not the only one.
        let text = self.first_bytes()?;
        let pid = pid.to_string();
        let mut lines = text.split(|byte| *byte == b'\n');
        Ok(lines.any(|line| !line.is_empty() && line != pid.as_bytes()))
    }

    /// Up to `most` of the processes in this very cgroup, as `/proc` names them; none where they cannot be read.
    pub(super) fn some_processes(&self, most: usize) -> Vec<String> {
        let text = self.first_bytes().unwrap_or_default();
        // A number that is cut off at the end does not count.
        let whole = text.split_inclusive(|byte| *byte == b'\n');
        whole
            .filter_map(|line| line.strip_suffix(b"\n"))
            .filter_map(|line| String::from_utf8(line.to_owned()).ok())
            .filter(|pid| pid != "0")
            .take(most)
            .collect()
    }

    /// The beginning of `cgroup.procs`, from one read.
    fn first_bytes(&self) -> Result<Vec<u8>> {
        let fd = self.open(PROCS, OFlags::RDONLY)?;
        let mut text = [0; READ_LEN];
        let read = rustix::io::read(&fd, &mut text)
            .map_err(|errno| self.failed(Operation::Read, Some(PROCS), errno))?;
        Ok(text.get(..read).unwrap_or_default().to_vec())
    }
}

// Proactive reclaim: `memory.reclaim`, since 5.19; its `swappiness=`, since 6.9.

/// How a request to reclaim ended. None of these tells how much was reclaimed: some kernels
/// report success and reclaim nothing. Compare [`memory_stat`](Cgroup::memory_stat) before and
/// after.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReclaimOutcome {
    /// The kernel reports that all of it was reclaimed.
    Complete,
    /// The kernel gave up before (`EAGAIN`): the remaining pages are in use, dirty, or protected below.
    Partial,
    /// A signal interrupted it (`EINTR`).
    Interrupted,
}

impl Cgroup {
    /// Asks the kernel to reclaim `bytes` from the cgroup and its descendants, synchronously: it
    /// may take long, and delays the cgroup's `rmdir`. Keep it small (32 MiB at most), and out of
    /// control loops.
    ///
    /// `swappiness` is 0 (file pages only) to 200 (anonymous only); `None` leaves the kernel's
    /// own. The cgroup's own `memory.low` has no effect here, only its descendants' has.
    ///
    /// # Errors
    /// As every operation on a cgroup; `EINVAL` when the kernel does not know `swappiness=`.
    pub fn reclaim(&self, bytes: u64, swappiness: Option<u8>) -> Result<ReclaimOutcome> {
        let request = match swappiness {
            Some(swappiness) => format!("{bytes} swappiness={swappiness}"),
            None => bytes.to_string(),
        };
        match self.write("memory.reclaim", &request) {
            Ok(()) => Ok(ReclaimOutcome::Complete),
            Err(error) if error.errno() == Some(Errno::AGAIN) => Ok(ReclaimOutcome::Partial),
            Err(error) if error.errno() == Some(Errno::INTR) => Ok(ReclaimOutcome::Interrupted),
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events() {
        let events = CgroupEvents::parse(b"populated 1\nfrozen 0\n").unwrap();
        assert!(events.populated);
        assert!(CgroupEvents::parse(b"frozen 1\n").is_err());
        assert!(CgroupEvents::parse(b"populated 2\n").is_err());
        assert!(CgroupEvents::parse(b"populated\n").is_err());
    }

    #[test]
    fn controllers() {
        let all = Controllers::parse(b"cpuset cpu io memory hugetlb pids\n").unwrap();
        assert!(all.has("memory") && all.has("io") && !all.has("mem"));
        assert_eq!(all.iter().count(), 6);
        assert_eq!(Controllers::parse(b"\n"), Ok(Controllers::default()));
        assert!(Controllers::parse(b"memory \xff\n").is_err());
    }

    #[test]
    fn one_key_of_many() {
        let text = b"usage_usec 12\nuser_usec 7\n";
        assert_eq!(keyed_number(text, b"user_usec", "x"), Ok(7));
        assert!(keyed_number(text, b"usage", "x").is_err());
        assert!(keyed_number(b"usage_usec -1\n", b"usage_usec", "x").is_err());
    }
}
