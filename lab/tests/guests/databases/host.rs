//! The host: a slow disk with the image, a daemon of this machine that serves it with a port, and a guest.

use std::path::Path;
use std::time::Duration;

use justitia_lab::LabDir;
use justitia_lab::vm::{Vm, VmSpec};
use serde_json::Value;

use super::cache_daemon::{Daemon, nbd_disk, program};
use super::image::image;
use super::scale::{CACHE_MIB, MEMORY};
use super::slow_disk::SlowDisk;

/// What the lab's own programs and the kernel take of the guest's memory.
const OVERHEAD: u64 = 320 << 20;

/// Fields end in this order: the guest first, then what its disks are made of.
pub(crate) struct Host {
    pub(crate) vm: Vm,
    _daemon: Daemon,
    pub(crate) disk: SlowDisk,
    dir: tempfile::TempDir,
}

impl Host {
    pub(crate) fn boot() -> Self {
        let _turn = crate::agent_guest::turn();
        let lab = LabDir::find().unwrap();
        let image = image(&lab);
        let dir = tempfile::tempdir_in(lab.dir("databases").unwrap()).unwrap();
        let at = dir.path();
        let disk = SlowDisk::start(at, &image);
        let config = format!(
            "control = {:?}\n[memory]\nsize = \"{CACHE_MIB}MiB\"\n[[vm]]\nname = \"vm\"\nsocket = {:?}\n[vm.port]\n\
             [[vm.disk]]\nname = \"root\"\nimage = {:?}\nmode = \"exclusive\"\n",
            at.join("control"),
            at.join("nbd"),
            disk.root()
        );
        std::fs::write(at.join("cache.toml"), config).unwrap();
        let mut daemon = Daemon::default();
        daemon.start(at);
        let vm = Vm::boot(&guest(at, &disk.socket())).unwrap();
        Self {
            vm,
            _daemon: daemon,
            disk,
            dir,
        }
    }

    /// What `justitia cache stats` says.
    pub(crate) fn stats(&self) -> Value {
        serde_json::from_slice(&self.cache("stats", &["--json"])).unwrap()
    }

    /// Gives the cache `mib` MiB.
    pub(crate) fn resize(&self, mib: u64) {
        self.cache("set", &["store", "memory", &format!("{mib}MiB")]);
    }

    /// What a command of `justitia cache` prints.
    fn cache(&self, command: &str, arguments: &[&str]) -> Vec<u8> {
        let mut program = program();
        program.args(["cache", command, "--control"]);
        program.arg(self.dir.path().join("control")).args(arguments);
        let done = program.output().unwrap();
        assert!(done.status.success(), "{done:?}");
        done.stdout
    }
}

/// The guest: the image and the port from the daemon, swap from the slow disk itself.
fn guest(dir: &Path, disk: &Path) -> VmSpec {
    let served = dir.join("nbd");
    VmSpec {
        memory: MEMORY + OVERHEAD,
        vcpus: 2,
        // While it swaps, so does what sends the heartbeat.
        heartbeat_timeout: Duration::from_secs(120),
        qemu_args: [
            nbd_disk(&served, "root", "root"),
            nbd_disk(&served, "vm/port", "justitia-port"),
            nbd_disk(disk, "swap", "swap"),
        ]
        .concat(),
        ..VmSpec::default()
    }
}
