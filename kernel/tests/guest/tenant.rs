//! A cgroup with processes in it, and waiting for events.

use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use justitia_kernel::cgroup::{Cgroup, CgroupFs};
use justitia_kernel::io::DevId;
use justitia_kernel::watch::{TreeWatcher, WatchEvent};

/// A cgroup that is removed at the end.
pub(super) struct Tenant {
    pub(super) path: PathBuf,
    pub(super) cgroup: Cgroup,
    /// Open, or the kernel drops the disk's page cache when the last reader closes it.
    _disk: std::fs::File,
}

impl Tenant {
    pub(super) fn new(name: impl AsRef<OsStr>) -> Self {
        let fs = CgroupFs::discover().unwrap();
        let path = fs.root().full_path().join(name.as_ref());
        std::fs::create_dir(&path).unwrap();
        let cgroup = fs.root().child(name.as_ref()).unwrap();
        let disk = std::fs::File::open(format!("/dev/{}", disk())).unwrap();
        Self {
            path,
            cgroup,
            _disk: disk,
        }
    }

    /// Runs `script` in the cgroup.
    pub(super) fn spawn(&self, script: &str) -> Child {
        Command::new("sh")
            .arg("-c")
            .arg(format!("echo $$ > \"$CGROUP/cgroup.procs\"; {script}"))
            .env("CGROUP", &self.path)
            .env("DISK", format!("/dev/{}", disk()))
            .spawn()
            .unwrap()
    }

    /// Reads `mib` of the disk through the page cache, after emptying that.
    pub(super) fn fill(&self, mib: u64) {
        std::fs::write("/proc/sys/vm/drop_caches", "1").unwrap();
        let script = format!("exec dd if=$DISK of=/dev/null bs=1M count={mib} 2>/dev/null");
        assert!(self.spawn(&script).wait().unwrap().success());
    }
}

impl Drop for Tenant {
    fn drop(&mut self) {
        let end = Instant::now() + Duration::from_secs(5);
        while std::fs::remove_dir(&self.path).is_err() && self.path.exists() {
            if std::thread::panicking() {
                return;
            }
            assert!(Instant::now() < end, "{:?} cannot be removed", self.path);
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// The name of the guest's disk.
pub(super) fn disk() -> String {
    std::env::var("GUEST_DISK").unwrap_or_else(|_| "vda".to_owned())
}

/// Its number.
pub(super) fn device() -> DevId {
    let number = std::fs::read_to_string(format!("/sys/block/{}/dev", disk())).unwrap();
    number.trim().parse().unwrap()
}

/// Drains until `wanted` is seen, and returns everything seen.
pub(super) fn wait_for(watcher: &mut TreeWatcher, wanted: &WatchEvent) -> Vec<WatchEvent> {
    let end = Instant::now() + Duration::from_secs(5);
    let mut seen = Vec::new();
    while !seen.contains(wanted) {
        assert!(Instant::now() < end, "{wanted:?} did not come: {seen:?}");
        seen.extend(watcher.drain().unwrap());
        std::thread::sleep(Duration::from_millis(5));
    }
    seen
}
