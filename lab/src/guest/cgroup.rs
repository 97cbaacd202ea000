//! The tenants' cgroups, as the experiment sets them up and as the kernel accounts for them.

use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use justitia_kernel::memory::MemoryStat;
use justitia_share::num::{to_f64, to_u64};

use super::shell;

/// Where cgroup v2 is mounted.
pub(super) const ROOT: &str = "/sys/fs/cgroup";

/// The processes of a cgroup end within this.
const REMOVAL: Duration = Duration::from_secs(30);

/// One tenant's cgroup.
#[derive(Clone, Debug)]
pub(super) struct Cgroup {
    path: PathBuf,
}

impl Cgroup {
    /// Creates it, below the root.
    pub(super) fn create(name: &str) -> Result<Self> {
        let path = Path::new(ROOT).join(name);
        std::fs::create_dir_all(&path).with_context(|| format!("creating {}", path.display()))?;
        Ok(Self { path })
    }

    /// The root cgroup: the processes outside any tenant.
    pub(super) fn root() -> Self {
        Self { path: ROOT.into() }
    }

    /// Where processes enter.
    pub(super) fn procs(&self) -> PathBuf {
        self.path.join("cgroup.procs")
    }

    /// Sets both weights that a disk may go by. BFQ's ends at 1000.
    pub(super) fn set_weight(&self, weight: u64) -> Result<()> {
        self.write("io.weight", &format!("default {weight}"))?;
        self.write("io.bfq.weight", &weight.min(1000).to_string())
    }

    /// Writes one of its files.
    pub(super) fn write(&self, file: &str, value: &str) -> Result<()> {
        write(&self.path.join(file), value)
    }

    fn read(&self, file: &str) -> Result<String> {
        let path = self.path.join(file);
        std::fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))
    }

    /// Bytes of file pages on its LRU lists.
    pub(super) fn file_pages(&self) -> Result<u64> {
        let stat = self.read("memory.stat")?;
        Ok(MemoryStat::parse(stat.as_bytes())?.file_lru())
    }

    /// Bytes that it has in swap; 0 where the kernel has none.
    pub(super) fn swapped(&self) -> u64 {
        let text = self.read("memory.swap.current").unwrap_or_default();
        text.trim().parse().unwrap_or(0)
    }

    /// What it has transferred to and from the disks.
    pub(super) fn device(&self) -> Result<Transfer> {
        let stat = self.read("io.stat")?;
        let sum = |key: &str| {
            stat.split_whitespace()
                .filter_map(|field| field.strip_prefix(key)?.parse::<u64>().ok())
                .sum()
        };
        Ok(Transfer {
            read: sum("rbytes="),
            written: sum("wbytes="),
            requests: sum("rios=") + sum("wios="),
        })
    }

    /// What the processes that are in it now have transferred since they started, cached or not.
    pub(super) fn application(&self) -> Result<Transfer> {
        let mut all = Transfer::default();
        for process in self.read("cgroup.procs")?.lines() {
            // It may have ended meanwhile.
            let io = std::fs::read_to_string(format!("/proc/{process}/io")).unwrap_or_default();
            all.read += field(&io, "rchar:");
            all.written += field(&io, "wchar:");
        }
        Ok(all)
    }

    /// Puts a process into it that lives as long as the guest, as a container has one.
    pub(super) fn inhabit(&self) -> Result<()> {
        self.start("exec sleep 100000", Path::new("/")).map(drop)
    }

    /// Starts a script in it.
    pub(super) fn start(&self, script: &str, dir: &Path) -> Result<Child> {
        let procs = self.procs();
        shell::start(&format!("echo 0 >{} && {script}", procs.display()), dir)
    }

    /// Ends every process in it.
    pub(super) fn kill(&self) -> Result<()> {
        self.write("cgroup.kill", "1")
    }

    /// Ends every process in it, and removes it.
    pub(super) fn remove(&self) -> Result<()> {
        self.kill()?;
        let begin = Instant::now();
        loop {
            match std::fs::remove_dir(&self.path) {
                Ok(()) => return Ok(()),
                Err(error) if begin.elapsed() >= REMOVAL => {
                    return Err(error).with_context(|| format!("removing {}", self.path.display()));
                }
                // Its processes have not ended yet.
                Err(_) => std::thread::sleep(Duration::from_millis(20)),
            }
        }
    }
}

/// Bytes, since some beginning.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Transfer {
    /// Read.
    pub read: u64,
    /// Written.
    pub written: u64,
    /// Requests, of a disk.
    pub requests: u64,
}

impl Transfer {
    /// Both together.
    pub(super) const fn total(self) -> u64 {
        self.read + self.written
    }

    /// Since an earlier sample.
    pub(super) const fn since(self, before: Self) -> Self {
        Self {
            read: self.read.saturating_sub(before.read),
            written: self.written.saturating_sub(before.written),
            requests: self.requests.saturating_sub(before.requests),
        }
    }
}

/// Writes a kernel file.
pub(super) fn write(path: &Path, value: &str) -> Result<()> {
    std::fs::write(path, value).with_context(|| format!("writing {value:?} to {}", path.display()))
}

/// A number after its name on a line of its own; 0 when absent.
pub(super) fn field(text: &str, name: &str) -> u64 {
    text.lines()
        .find_map(|line| {
            let mut fields = line.split_whitespace();
            (fields.next() == Some(name)).then(|| fields.next()?.parse().ok())?
        })
        .unwrap_or(0)
}

/// `of` in proportion to a weight among all.
pub(super) fn share(of: u64, weight: u64, all: u64) -> u64 {
    to_u64(to_f64(of) * to_f64(weight) / to_f64(all.max(1)))
}

/// A field of /proc/meminfo in bytes.
pub(super) fn meminfo(name: &str) -> Result<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").context("reading /proc/meminfo")?;
    Ok(field(&text, name) << 10)
}
