//! The kernel's own counts of a cgroup's memory, brought up to date.

use std::os::fd::OwnedFd;

use rustix::fs::OFlags;

use super::Cgroup;
use super::kept::read_kept;
use crate::error::Result;

/// The first release, major and minor, in which each controller's counts are brought up to date apart; before, whoever
/// asked for any of a cgroup's brought all of them up to date.
const APART: (u64, u64) = (6, 16);

/// A file of a cgroup, kept open, whose reading has the kernel add up what its processors have counted apart.
///
/// The kernel goes by these sums itself, above all where it holds back who writes (`balance_dirty_pages`), and does not
/// bring them up to date for that: since `mem_cgroup_wb_stats` does so only when two seconds have passed, a writer is let
/// through for as long, and held back for as long after.
#[derive(Debug)]
pub struct Counts {
    cgroup: Cgroup,
    file: &'static str,
    fd: OwnedFd,
}

impl Counts {
    /// Opens the cheapest such file of `cgroup` on a kernel of this `version` ([`version`](crate::capabilities::version));
    /// unknown ones are taken for new.
    ///
    /// # Errors
    /// As every reader of [`Cgroup`]; `EMFILE` when the process has no descriptors left.
    pub fn open(cgroup: &Cgroup, version: Option<(u64, u64)>) -> Result<Self> {
        let file = match version {
            Some(version) if version < APART => "cpu.stat",
            _ => "memory.stat",
        };
        Ok(Self {
            cgroup: cgroup.clone(),
            file,
            fd: cgroup.open(file, OFlags::RDONLY)?,
        })
    }

    /// Brings them up to date, the cgroup's and those below it.
    ///
    /// # Errors
    /// When the cgroup is gone.
    pub fn refresh(&self) -> Result<()> {
        // What it says is not looked at.
        read_kept(&self.cgroup, &self.fd, self.file, |_| Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cgroup::CgroupFs;

    #[test]
    fn the_file_is_the_release_s() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        std::fs::create_dir(&path).unwrap();
        let fs = CgroupFs::open_fixture(dir.path(), true).unwrap();
        let a = fs.root().child("a".as_ref()).unwrap();
        std::fs::write(path.join("cpu.stat"), "usage_usec 0\n").unwrap();
        Counts::open(&a, Some((6, 12))).unwrap().refresh().unwrap();
        for version in [Some((6, 16)), Some((7, 0)), None] {
            assert!(Counts::open(&a, version).unwrap_err().is_missing());
        }
        std::fs::write(path.join("memory.stat"), "").unwrap();
        Counts::open(&a, None).unwrap().refresh().unwrap();
        std::fs::remove_dir_all(path).unwrap();
        assert!(Counts::open(&a, None).unwrap_err().is_gone());
    }
}
