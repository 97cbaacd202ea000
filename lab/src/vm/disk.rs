//! A guest's disk: a sparse file without a name, so that nothing is left of it whatever happens.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::host::{run, tool};

/// A file system to make on a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Filesystem {
    /// ext4 with its defaults.
    Ext4,
    /// XFS with its defaults.
    Xfs,
}

impl std::fmt::Display for Filesystem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Ext4 => "ext4",
            Self::Xfs => "xfs",
        })
    }
}

/// How fast a disk is. 0 means without limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Throttle {
    /// Bytes per second, reads and writes together.
    pub bytes_per_second: u64,
    /// Requests per second, reads and writes together.
    pub requests_per_second: u64,
}

/// What disk a guest gets: `/dev/vda`, `/dev/vdb` … in the order in which they are asked for.
#[derive(Clone, Copy, Debug)]
pub struct DiskSpec {
    /// In bytes; the file is sparse.
    pub size: u64,
    /// Made on it before the guest starts; `None` leaves it blank.
    pub filesystem: Option<Filesystem>,
    /// How large ext4's journal is, in bytes; 0 is as mkfs.ext4 has it for a disk of this size.
    pub journal: u64,
    /// How fast it is.
    pub throttle: Throttle,
}

impl DiskSpec {
    /// An ext4 disk at 60 MB/s, the lab's usual one.
    #[must_use]
    pub const fn ext4(size: u64) -> Self {
        Self {
            size,
            filesystem: Some(Filesystem::Ext4),
            journal: 0,
            throttle: Throttle {
                bytes_per_second: 60_000_000,
                requests_per_second: 0,
            },
        }
    }
}

/// Whether a sparse file may grow to this size. Where it may not, QEMU stops the guest, which then looks as if it hung.
fn room(size: u64, left: u64, dir: &Path) -> Result<()> {
    ensure!(
        left >= size,
        "expected room for a guest's disk of {} MiB in {}, found {} MiB: free some, or set JUSTITIA_LAB_DIR to another place",
        size >> 20,
        dir.display(),
        left >> 20
    );
    Ok(())
}

/// The file behind a disk.
pub struct Disk {
    file: File,
    /// How fast it is to be while it is measured.
    pub throttle: Throttle,
}

impl Disk {
    /// Makes the file, in `dir`, and the file system on it.
    pub fn create(spec: &DiskSpec, dir: &Path) -> Result<Self> {
        let file = tempfile::tempfile_in(dir)
            .with_context(|| format!("making a disk in {}", dir.display()))?;
        let left = rustix::fs::fstatvfs(&file)
            .with_context(|| format!("asking how much room is in {}", dir.display()))?;
        room(spec.size, left.f_bavail.saturating_mul(left.f_frsize), dir)?;
        file.set_len(spec.size).with_context(|| {
            format!("making a disk of {} bytes in {}", spec.size, dir.display())
        })?;
        let disk = Self {
            file,
            throttle: spec.throttle,
        };
        let path = disk.path();
        match spec.filesystem {
            Some(Filesystem::Ext4) => {
                // Nothing is left to initialise in the background: that would be measured too.
                // The file is new, so a journal is blank without being written.
                let options = "lazy_itable_init=0,lazy_journal_init=1,nodiscard";
                let mut make = Command::new(tool("mkfs.ext4")?);
                make.args(["-q", "-F", "-m", "0", "-N", "131072", "-E", options]);
                if spec.journal > 0 {
                    make.arg("-J").arg(format!("size={}", spec.journal >> 20));
                }
                run(make.arg(&path))?;
            }
            Some(Filesystem::Xfs) => {
                run(Command::new(tool("mkfs.xfs")?)
                    .args(["-q", "-f", "-K"])
                    .arg(&path))?;
            }
            None => {}
        }
        Ok(disk)
    }

    /// Where another process of this user can open it, while this process lives.
    pub fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.file.as_raw_fd())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_that_could_not_grow_is_refused() {
        let dir = Path::new("/lab");
        assert!(room(4 << 30, 4 << 30, dir).is_ok());
        let why = room(4 << 30, 1 << 30, dir).unwrap_err().to_string();
        assert!(
            why.starts_with(
                "expected room for a guest's disk of 4096 MiB in /lab, found 1024 MiB: "
            ),
            "{why}"
        );
    }
}
