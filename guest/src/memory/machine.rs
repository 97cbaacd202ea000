//! The machine: readings of its memory from the kernel, and reclaim from its cache.

use std::path::Path;
use std::time::{Duration, Instant};

use justitia_cgroup_tree::Rule;
use justitia_guest_protocol::memory::{Cached, Tenants};
use justitia_kernel::cgroup::{CgroupFs, ReclaimOutcome};
use justitia_kernel::proc::ProcFs;
use justitia_kernel::psi::PsiResource;
use justitia_kernel::{Error, PAGE_SIZE, Result};
use rustix::time::ClockId;

use super::readings::Readings;
use super::targets::Targets;
use super::worth::Spare;
use crate::pools::cgroups::Cgroups;

/// A machine with memory that can be reclaimed.
pub(super) trait Machine {
    /// Begins a request. `spare`: the memory that the agent's tenants do not use, if an agent runs.
    fn begin(&mut self, _spare: Option<&[Spare]>) {}

    fn read(&mut self) -> Result<Readings>;

    /// Has the kernel reclaim at most `bytes` of pages of files, without swapping. Readings tell the result.
    fn reclaim(&mut self, bytes: u64) -> Result<()>;

    /// The blocks of its disks that are cached.
    fn cached(&mut self, seed: u64) -> Result<Cached>;

    /// The tenants that share its page cache.
    fn tenants(&mut self) -> Tenants;
}

/// The least interval between readings of every process's mapped pages.
const LOOK_AGAIN: Duration = Duration::from_secs(10);
/// The most processes that are read.
const MAX_PROCESSES: usize = 4096;

/// The machine on which this runs.
pub(super) struct Kernel {
    proc: ProcFs,
    fs: CgroupFs,
    /// The administrator's rules for cgroups.
    rules: Vec<Rule>,
    targets: Targets,
    /// Whether `memory.reclaim` accepts `swappiness=`; `None`: not tried.
    takes_swappiness: Option<bool>,
    /// Time that this program itself waited for reclaim: the kernel counts it as pressure.
    own: Duration,
    /// The highest pressure reported so far: the kernel's counts and `own` are not read at the same moment.
    told: [Duration; 2],
    /// The file pages that processes have mapped, and when they were read.
    mapped: Option<(Duration, u64)>,
}

impl Kernel {
    pub(super) fn new(fs: CgroupFs, rules: Vec<Rule>) -> Result<Self> {
        Ok(Self {
            proc: ProcFs::open(Path::new("/proc"))?,
            fs,
            rules,
            targets: Targets::Machine,
            takes_swappiness: None,
            own: Duration::ZERO,
            told: [Duration::ZERO; 2],
            mapped: None,
        })
    }

    /// The free memory below which the kernel reclaims by itself.
    pub(super) fn low_watermark(&self) -> u64 {
        let zones = self.proc.zoneinfo();
        zones.map_or(0, |zones| zones.marks().low.saturating_mul(PAGE_SIZE))
    }

    fn pressure(&mut self) -> [Duration; 2] {
        let Ok(psi) = self.proc.pressure(PsiResource::Memory) else {
            return self.told;
        };
        let foreign = |total| Duration::from_micros(total).saturating_sub(self.own);
        let [some, full] = self.told;
        self.told = [
            some.max(foreign(psi.some.total)),
            full.max(foreign(psi.full.total)),
        ];
        self.told
    }

    /// `Mapped` includes shared memory: if there is some, mapped files are summed over processes. That counts pages of several
    /// processes more than once: the result is at most `Mapped`.
    fn mapped_file(&mut self, at: Duration, mapped: u64, shared: u64) -> u64 {
        if shared < mapped / 16 {
            return mapped;
        }
        let fresh = self.mapped.filter(|(then, _)| at < *then + LOOK_AGAIN);
        let (_, by_processes) = *self
            .mapped
            .insert(fresh.unwrap_or_else(|| (at, mapped_by_processes(Path::new("/proc")))));
        mapped.min(by_processes)
    }
}

impl Machine for Kernel {
    fn begin(&mut self, spare: Option<&[Spare]>) {
        self.targets = Targets::find(self.fs.root(), spare);
    }

    fn read(&mut self) -> Result<Readings> {
        let meminfo = self.proc.meminfo()?;
        let vmstat = self.proc.vmstat()?;
        let at = since_boot();
        let [psi_some, psi_full] = self.pressure();
        let file = vmstat.file_lru();
        let mapped_file = self.mapped_file(at, meminfo.mapped, meminfo.shmem);
        Ok(Readings {
            at,
            total: meminfo.mem_total,
            free: meminfo.mem_free,
            available: meminfo.mem_available,
            file,
            active_file: meminfo.active_file.min(file),
            mapped_file: mapped_file.min(file),
            mapped: meminfo.mapped,
            dirty: meminfo.dirty.saturating_add(meminfo.writeback),
            slab_reclaimable: meminfo.slab_reclaimable,
            anonymous: meminfo.active_anon.saturating_add(meminfo.inactive_anon),
            swap_used: meminfo.swap_total.saturating_sub(meminfo.swap_free),
            refaults: vmstat.workingset_refault_file,
            activations: vmstat.pgactivate,
            psi_some,
            psi_full,
            oom_kills: vmstat.oom_kill,
            busy: std::fs::read_to_string("/proc/stat").map_or(Duration::ZERO, |text| busy(&text)),
        })
    }

    fn reclaim(&mut self, bytes: u64) -> Result<()> {
        let began = Instant::now();
        let done = self.reclaim_files(bytes);
        self.own += began.elapsed();
        done.map(drop)
    }

    fn cached(&mut self, seed: u64) -> Result<Cached> {
        let file = self.proc.vmstat()?.file_lru();
        Ok(super::cached::cached(seed, file))
    }

    /// Reads the tree anew each time: without requests it costs nothing, and no descriptors.
    fn tenants(&mut self) -> Tenants {
        Tenants::new(Cgroups::new(&self.fs, &self.rules).tenants())
    }
}

impl Kernel {
    fn reclaim_files(&mut self, bytes: u64) -> Result<ReclaimOutcome> {
        let Some((cgroup, bytes)) = self.targets.next(self.fs.root(), bytes) else {
            return Ok(ReclaimOutcome::Partial);
        };
        if self.takes_swappiness != Some(false) {
            let done = cgroup.reclaim(bytes, Some(0));
            let is_unknown = |error: &Error| error.errno() == Some(rustix::io::Errno::INVAL);
            if self.takes_swappiness.is_some() || !done.as_ref().is_err_and(is_unknown) {
                // Other errors, such as a removed cgroup, say nothing about `swappiness=`.
                if done.is_ok() {
                    self.takes_swappiness = Some(true);
                }
                return done.or_else(|error| match cgroup.is_root() {
                    true => Err(error),
                    // The cgroup was removed.
                    false => Ok(ReclaimOutcome::Partial),
                });
            }
            self.takes_swappiness = Some(false);
        }
        // Before Linux 6.9. Without swap only pages of files are reclaimed. With swap, reclaim might swap: nothing is taken.
        match self.proc.meminfo()?.swap_total {
            0 => cgroup.reclaim(bytes, None),
            _ => Ok(ReclaimOutcome::Partial),
        }
    }
}

/// Time since the boot, suspended time included.
pub(super) fn since_boot() -> Duration {
    let time = rustix::time::clock_gettime(ClockId::Boottime);
    Duration::try_from(time).unwrap_or_default()
}

/// Bytes of files that processes have mapped, summed over processes (`RssFile`).
fn mapped_by_processes(proc: &Path) -> u64 {
    let entries = std::fs::read_dir(proc).into_iter().flatten().flatten();
    let is_process = |entry: &std::fs::DirEntry| {
        let name = entry.file_name();
        name.as_encoded_bytes().iter().all(u8::is_ascii_digit)
    };
    let processes = entries.filter(is_process).take(MAX_PROCESSES);
    let mapped = processes.map(|entry| {
        let status = std::fs::read_to_string(entry.path().join("status"));
        status.map_or(0, |text| rss_file(&text))
    });
    mapped.fold(0, u64::saturating_add)
}

/// `RssFile:    1234 kB` of a process's status.
fn rss_file(status: &str) -> u64 {
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("RssFile:"));
    let number = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    number.unwrap_or(0).saturating_mul(1024)
}

/// Busy time of all processors, of `/proc/stat`: user, nice, system, irq and softirq.
fn busy(stat: &str) -> Duration {
    /// Milliseconds of a tick in `/proc` (`USER_HZ`).
    const TICK: u64 = 10;
    let line = stat.lines().next().unwrap_or_default();
    let numbers: Vec<u64> = line
        .split_whitespace()
        .skip(1)
        .map_while(|word| word.parse().ok())
        .collect();
    let of = |place: usize| numbers.get(place).copied().unwrap_or(0);
    let ticks = [0, 1, 2, 5, 6]
        .map(of)
        .into_iter()
        .fold(0, u64::saturating_add);
    Duration::from_millis(ticks.saturating_mul(TICK))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_processor_is_busy_with_programs_the_kernel_and_interrupts() {
        let text = "cpu  100 10 20 9000 500 3 4 70 0 0\ncpu0 1 1 1 1 1 1 1 1 0 0\n";
        assert_eq!(busy(text), Duration::from_millis(1370));
        let of_a_year = "cpu  20000000000 0 0 0\n";
        assert_eq!(busy(of_a_year), Duration::from_secs(200_000_000));
        for wrong in ["", "cpu", "cpu x 1", "cpu 18446744073709551615 1 1"] {
            let _ = busy(wrong);
        }
    }

    #[test]
    fn what_processes_have_mapped_is_added_up() {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in [
            (
                "1",
                "Name:\tinit\nRssFile:\t    8 kB\nRssShmem:\t  100 kB\n",
            ),
            ("22", "RssFile:\t    4 kB\n"),
            ("3", "Name:\tkthreadd\n"),
            ("self", "RssFile:\t    16 kB\n"),
        ] {
            std::fs::create_dir(dir.path().join(name)).unwrap();
            std::fs::write(dir.path().join(name).join("status"), text).unwrap();
        }
        std::fs::create_dir(dir.path().join("4")).unwrap();
        assert_eq!(mapped_by_processes(dir.path()), 12 << 10);
    }

    #[test]
    fn this_machine() {
        let dir = tempfile::tempdir().unwrap();
        let fs = CgroupFs::open_fixture(dir.path()).unwrap();
        let mut kernel = Kernel::new(fs, Vec::new()).unwrap();
        let found = kernel.read().unwrap();
        assert!(found.total > 0 && found.free <= found.total && found.file <= found.total);
        assert!(found.mapped_file <= found.file && !found.busy.is_zero());
        assert!(kernel.read().unwrap().at >= found.at);
    }

    #[test]
    fn a_kernel_without_swappiness_is_asked_without_it() {
        let dir = tempfile::tempdir().unwrap();
        let fs = CgroupFs::open_fixture(dir.path()).unwrap();
        let mut kernel = Kernel::new(fs, Vec::new()).unwrap();
        assert!(kernel.reclaim(4096).unwrap_err().is_missing());
        assert_eq!(kernel.takes_swappiness, None);
        let file = dir.path().join("memory.reclaim");
        std::fs::write(&file, "").unwrap();
        kernel.reclaim(4096).unwrap();
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "4096 swappiness=0");
        assert!(kernel.own > Duration::ZERO);
    }
}
