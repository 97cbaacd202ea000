//! A guest's disk: a sparse file without a name, so that nothing is left of it whatever happens.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::host::{run, tool};
use crate::spec::{DiskSpec, Filesystem, Throttle};

/// Whether a sparse file may grow to this size. Where it may not, QEMU stops the guest, which then looks hung.
fn check_space(size: u64, left: u64, dir: &Path) -> Result<()> {
    ensure!(
        left >= size,
        "expected space for a guest's disk of {} MiB in {}, found {} MiB: free some, or set JUSTITIA_LAB_DIR to another place",
        size >> 20,
        dir.display(),
        left >> 20
    );
    Ok(())
}

/// The file behind a disk.
pub(super) struct Disk {
    file: File,
    /// Its speed while it is throttled.
    pub throttle: Throttle,
}

impl Disk {
    /// Makes the file, in `dir`, and the file system on it.
    pub(super) fn create(spec: &DiskSpec, dir: &Path) -> Result<Self> {
        let file = tempfile::tempfile_in(dir)
            .with_context(|| format!("making a disk in {}", dir.display()))?;
        let left = rustix::fs::fstatvfs(&file)
            .with_context(|| format!("asking for the free space in {}", dir.display()))?;
        check_space(spec.size, left.f_bavail.saturating_mul(left.f_frsize), dir)?;
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
            Some(Filesystem::Btrfs) => {
                run(Command::new(tool("mkfs.btrfs")?)
                    .args(["-q", "-f", "-K"])
                    .arg(&path))?;
            }
            None => {}
        }
        Ok(disk)
    }

    /// Where another process of this user can open it, while this process lives.
    pub(super) fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.file.as_raw_fd())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_that_could_not_grow_is_refused() {
        let dir = Path::new("/lab");
        assert!(check_space(4 << 30, 4 << 30, dir).is_ok());
        let why = check_space(4 << 30, 1 << 30, dir).unwrap_err().to_string();
        assert!(
            why.starts_with(
                "expected space for a guest's disk of 4096 MiB in /lab, found 1024 MiB: "
            ),
            "{why}"
        );
    }
}
