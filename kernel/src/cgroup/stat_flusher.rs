//! Flushing the kernel's per-CPU memory counters of a cgroup (rstat).

use std::os::fd::OwnedFd;

use rustix::fs::OFlags;

use super::Cgroup;
use super::stat_fds::pread_file;
use crate::error::Result;
use crate::release::KernelVersion;

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
    use crate::cgroup::CgroupFs;

    #[test]
    fn the_file_depends_on_the_release() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        std::fs::create_dir(&path).unwrap();
        let fs = CgroupFs::open_fixture(dir.path(), true).unwrap();
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
