//! The host of a guest that puts: an image with files, and a daemon of this machine that serves it with a port over NBD.

use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use justitia_lab::vm::{ShResult, Vm, VmSpec};
use serde_json::Value;

use super::cache_daemon::{Daemon, lookups, nbd_disk, program};
use super::nbd_files::NbdFiles;
use super::retry;

/// The serial of the guest's disk with the files.
const DISK: &str = "web-root";
/// The name of its image.
const DISK_IMAGE: &str = "image";

/// The serial of a disk on which the guest encrypts.
const SECRET: &str = "secret";

/// Bytes of that.
const SECRET_SIZE: u64 = 1 << 30;

/// The serial of a disk that was never written: long, and of no bytes on the host.
const STREAM: &str = "stream";

/// Bytes of that.
const STREAM_SIZE: u64 = 256 << 30;

/// MiB of the cache's SSD, a file.
const SSD_MIB: u64 = 256;

/// A daemon, its image, and what is known of them.
pub(crate) struct Host {
    // In the order in which they end.
    daemon: Daemon,
    _slow: Option<NbdFiles>,
    dir: tempfile::TempDir,
}

impl Host {
    /// An image of `image_mib` with an ext4 on it, whose file `data` has `data_mib` of random content, and a cache of
    /// `cache_mib`, with an SSD for guests that ask for it. The disks read `bytes_a_second`; `None`: they lie in this
    /// machine's memory.
    pub(crate) fn new(
        image_mib: u64,
        data_mib: u64,
        cache_mib: u64,
        bytes_a_second: Option<u64>,
    ) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let daemon = Daemon::default();
        let mut host = Self {
            daemon,
            _slow: None,
            dir,
        };
        std::fs::create_dir(host.path("files")).unwrap();
        write_random(&host.path("files/data"), data_mib);
        let image = File::create(host.path("image")).unwrap();
        image.set_len(image_mib << 20).unwrap();
        let made = Command::new("/sbin/mkfs.ext4")
            .args([
                "-q",
                "-F",
                "-E",
                "lazy_itable_init=0,lazy_journal_init=1",
                "-d",
            ])
            .args([host.path("files"), host.path("image")])
            .status()
            .unwrap();
        assert!(made.success());
        for (name, size) in [("secret", SECRET_SIZE), ("stream", STREAM_SIZE)] {
            let image = File::create(host.path(name)).unwrap();
            image.set_len(size).unwrap();
        }
        let mut images = [DISK_IMAGE, SECRET, STREAM].map(|name| host.path(name));
        if let Some(bytes) = bytes_a_second {
            std::fs::create_dir(host.path("slow")).unwrap();
            images = [DISK_IMAGE, SECRET, STREAM].map(|name| host.path("slow").join(name));
            // All that go through nbdkit, in bits; without what it would let pass at once after a pause.
            let rate = [format!("rate={}", 8 * bytes), "burstiness=0.1".to_owned()];
            let socket = host.path("slow.sock");
            let servers = NbdFiles::start(host.dir.path(), &socket, &["rate"], &rate, &images);
            host._slow = Some(servers);
        }
        let [root, secret, stream] = images;
        let config = format!(
            "control = {:?}\n[memory]\nsize = \"{cache_mib}MiB\"\n[ssd]\npath = {:?}\nsize = \"{SSD_MIB}MiB\"\n\
             [[vm]]\nname = \"web\"\nsocket = {:?}\n[vm.port]\nssd = true\n\
             [[vm.disk]]\nname = \"{DISK}\"\nimage = {:?}\nmode = \"exclusive\"\n\
             [[vm.disk]]\nname = \"{SECRET}\"\nimage = {:?}\nmode = \"exclusive\"\n\
             [[vm.disk]]\nname = \"{STREAM}\"\nimage = {:?}\nmode = \"exclusive\"\n",
            host.path("control"),
            host.path("ssd"),
            host.path("nbd"),
            root,
            secret,
            stream,
        );
        std::fs::write(host.path("cache.toml"), config).unwrap();
        host
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The checksum of the file.
    pub(crate) fn sum(&self) -> String {
        let done = Command::new("md5sum").arg(self.path("files/data")).output();
        let text = String::from_utf8(done.unwrap().stdout).unwrap();
        text.split_whitespace().next().unwrap().to_owned()
    }

    /// Starts the daemon.
    pub(crate) fn start(&mut self) {
        self.daemon.start(self.dir.path());
    }

    /// Kills the daemon.
    pub(crate) fn kill(&mut self) {
        self.daemon.kill();
    }

    /// A guest of `memory` bytes with the disk and the port. Its requests wait while the daemon is gone.
    pub(crate) fn guest(&self, memory: u64) -> VmSpec {
        let disks = [
            (DISK, DISK),
            (SECRET, SECRET),
            (STREAM, STREAM),
            ("web/port", "justitia-port"),
        ];
        let args = disks.map(|(export, serial)| nbd_disk(&self.path("nbd"), export, serial));
        VmSpec {
            memory,
            qemu_args: args.into_iter().flatten().collect(),
            ..VmSpec::default()
        }
    }

    /// What `justitia cache stats` says.
    pub(crate) fn stats(&self) -> Value {
        let mut command = program();
        command.args(["cache", "stats", "--json", "--control"]);
        let done = command.arg(self.path("control")).output().unwrap();
        assert!(done.status.success(), "{done:?}");
        serde_json::from_slice(&done.stdout).unwrap()
    }

    /// Puts by their verdict.
    pub(crate) fn verdict(&self, verdict: &str) -> u64 {
        self.stats()["ports"][0]["verdicts"][verdict]
            .as_u64()
            .unwrap()
    }

    /// A pool's weights in memory and on the SSD, and its accepted blocks; `None` if there is no such pool.
    pub(crate) fn pool(&self, name: &str) -> Option<([u64; 2], u64)> {
        let stats = self.stats();
        let pools = stats["cache"]["vms"][0]["pools"].as_array().unwrap();
        let pool = pools.iter().find(|pool| pool["name"] == name)?;
        let number = |value: &Value| value.as_u64().unwrap();
        let weights = ["memory_weight", "ssd_weight"].map(|name| number(&pool[name]));
        Some((weights, number(&pool["counts"]["insertions"])))
    }

    /// The figures of the VM's pools, added up: of blocks looked up, and of those found.
    pub(crate) fn lookups(&self) -> (u64, u64) {
        lookups(&self.stats())
    }
}

/// Random content of a seed that is always the same.
fn write_random(path: &Path, mib: u64) {
    let mut file = File::create(path).unwrap();
    let mut random = fastrand::Rng::with_seed(7);
    let mut chunk = vec![0; 1 << 20];
    for _ in 0..mib {
        random.fill(&mut chunk);
        file.write_all(&chunk).unwrap();
    }
}

/// `disk SERIAL` is the device of a disk. The disk with the files is mounted at `/mnt`.
const SETUP: &str = r#"
cat >/run/lib <<'END'
disk() { for disk in /sys/block/vd*; do [ "$(cat $disk/serial)" != $1 ] || echo /dev/${disk##*/}; done; }
END
. /run/lib
mkdir -p /mnt && mount $(disk web-root) /mnt
"#;

/// A guest with this kernel whose disk is mounted.
pub(crate) fn boot(host: &Host, memory: u64, kernel: &str) -> Vm {
    let _turn = crate::agent_guest::turn();
    let Ok(kernel) = kernel.parse();
    let guest = VmSpec {
        kernel,
        ..host.guest(memory)
    };
    let vm = Vm::boot(&guest).unwrap();
    run(&vm, SETUP);
    vm
}

/// Runs a script that must succeed.
#[track_caller]
pub(crate) fn run(vm: &Vm, script: &str) -> String {
    let done = vm.guest().sh_within(script, Duration::from_secs(300));
    let ShResult {
        status,
        stdout,
        stderr,
        ..
    } = done.unwrap_or_else(|error| retry::fail(&error));
    if status == 0 {
        return stdout.trim().to_owned();
    }
    let log = vm
        .guest()
        .sh("tail -40 /run/guest.log; dmesg | tail -20")
        .unwrap();
    panic!(
        "expected this to succeed: {script}\nfound {stdout}\n{stderr}\nthe log:\n{}",
        log.stdout
    );
}

/// Starts the guest agent, and waits until it offers the disk.
pub(crate) fn start_agent(vm: &Vm) {
    run(
        vm,
        "justitia guest --json 1 >/run/guest.json 2>>/run/guest.log & echo $! >/run/guest.pid",
    );
    comes(vm, "grep -q 'offered to the host' /run/guest.log");
}

/// Ends the guest agent by SIGTERM.
pub(crate) fn end_agent(vm: &Vm) {
    run(vm, "kill $(cat /run/guest.pid)");
    comes(vm, "! [ -d /proc/$(cat /run/guest.pid) ]");
}

/// Waits until a script succeeds.
#[track_caller]
pub(crate) fn comes(vm: &Vm, script: &str) {
    run(
        vm,
        &format!("for i in $(seq 600); do if {script}; then exit 0; fi; sleep 0.1; done; exit 1"),
    );
}

/// The last status that the guest agent has printed.
pub(crate) fn status(vm: &Vm) -> Value {
    serde_json::from_str(&run(vm, "tail -n 1 /run/guest.json")).unwrap()
}
