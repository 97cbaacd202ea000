//! Images on disks of this machine that read so many bytes a second: loop devices, behind the throttle of the kernel's
//! blkio controller (cgroup v1). That takes root.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Where the controller is mounted.
const BLKIO: &str = "/sys/fs/cgroup/blkio";

/// A file as a block device. Detached when this is dropped.
struct Loop(String);

impl Loop {
    fn new(file: &Path) -> Self {
        let mut command = Command::new("losetup");
        let command = command.args(["--find", "--show", "--direct-io=on"]);
        let done = command.arg(file).output().unwrap();
        assert!(done.status.success(), "expected a loop device: {done:?}");
        Self(String::from_utf8(done.stdout).unwrap().trim().to_owned())
    }

    /// Its numbers, as the kernel writes them.
    fn numbers(&self) -> String {
        let name = self.0.trim_start_matches("/dev/");
        let numbers = std::fs::read_to_string(format!("/sys/block/{name}/dev"));
        numbers.unwrap().trim().to_owned()
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let done = Command::new("losetup").args(["--detach", &self.0]).status();
        assert!(done.is_ok_and(|status| status.success()), "{}", self.0);
    }
}

/// Disks that one process reads slowly.
pub(crate) struct SlowDisks {
    disks: Vec<Loop>,
    /// The cgroup of that process.
    group: PathBuf,
}

impl SlowDisks {
    /// Disks with the contents of files, of which each reads so many bytes a second.
    pub(crate) fn new(files: &[PathBuf], bytes: u64) -> Self {
        let group = Path::new(BLKIO).join(format!("justitia-lab-{}", std::process::id()));
        std::fs::create_dir(&group).unwrap_or_else(|error| {
            panic!("expected root and cgroup v1's blkio: {group:?}: {error}");
        });
        let disks: Vec<Loop> = files.iter().map(|file| Loop::new(file)).collect();
        for disk in &disks {
            let limit = format!("{} {bytes}", disk.numbers());
            std::fs::write(group.join("blkio.throttle.read_bps_device"), limit).unwrap();
        }
        Self { disks, group }
    }

    /// Their devices.
    pub(crate) fn devices(&self) -> impl Iterator<Item = &str> {
        self.disks.iter().map(|disk| disk.0.as_str())
    }

    /// A process reads them slowly from now on.
    pub(crate) fn slow(&self, pid: u32) {
        std::fs::write(self.group.join("cgroup.procs"), pid.to_string()).unwrap();
    }
}

impl Drop for SlowDisks {
    fn drop(&mut self) {
        // The daemon has ended by then; what is left over does no harm.
        let _ = std::fs::remove_dir(&self.group);
    }
}
