//! A virtio disk of the guest whose daemon runs on this machine.

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use justitia_lab::vm::{Guest, VmSpec};

use super::cache_daemon::{Daemon, program};
use super::{IMAGE, run};

/// How often the daemon of the virtio disk is killed: so often, or as this variable says.
const KILLS: u64 = 5;
const KILLS_VARIABLE: &str = "JUSTITIA_LAB_VHOST_KILLS";
/// Seconds between two.
const PAUSE: u64 = 3;

/// Random reads and writes of four jobs, each with a part of the disk, in the background.
const VERIFY: &str = r#"
for disk in /sys/block/vd*; do
    if [ "$(cat $disk/serial)" = vhost ]; then echo ${disk##*/} >/run/disk; fi
done
disk=$(cat /run/disk)
[ $(ls /sys/block/$disk/mq | wc -l) = 4 ]
(
    status=0
    fio --name=verify --filename=/dev/$disk --ioengine=libaio --direct=1 --iodepth=16 --rw=randrw --numjobs=4 \
        --offset_increment=16m --size=16m --bssplit=4k/60:16k/30:64k/10 --fsync=64 --time_based --runtime=$SECONDS_OF_FIO \
        --verify=crc32c --verify_fatal=1 --verify_backlog=256 --minimal || status=$?
    echo $status >/run/fio.status
) >/run/fio.log 2>&1 </dev/null &
"#;

/// A daemon of this machine that serves an image over vhost-user-blk.
pub(crate) struct VhostDaemon {
    dir: tempfile::TempDir,
    daemon: Daemon,
}

impl VhostDaemon {
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let image = std::fs::File::create(dir.path().join("image")).unwrap();
        image.set_len(IMAGE).unwrap();
        let path = |name| dir.path().join(name);
        let config = format!(
            "control = {:?}\n[memory]\nsize = \"16MiB\"\n[[vm]]\nname = \"vm\"\n[[vm.disk]]\nname = \"vhost\"\nimage = {:?}\nvhost = {:?}\n",
            path("control"),
            path("image"),
            path("socket")
        );
        std::fs::write(path("cache.toml"), config).unwrap();
        let mut daemon = Daemon::default();
        daemon.start(dir.path());
        Self { dir, daemon }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The guest's memory as a file that both sides map, and the disk.
    pub(crate) fn qemu_args(&self) -> Vec<String> {
        let memory = VmSpec::default().memory;
        let socket = self.path("socket");
        let args = [
            "-object".to_owned(),
            format!("memory-backend-memfd,id=memory,size={memory},share=on,seal=on"),
            "-machine".to_owned(),
            "memory-backend=memory".to_owned(),
            "-chardev".to_owned(),
            format!("socket,id=vhost,path={},reconnect=1", socket.display()),
            "-device".to_owned(),
            "vhost-user-blk-pci,chardev=vhost,num-queues=4".to_owned(),
        ];
        args.into()
    }

    /// The guest's disk is verified while its daemon is killed; it grows; and it is what the image is.
    pub(crate) fn is_survived_by(&mut self, guest: &Guest) {
        let kills = std::env::var(KILLS_VARIABLE).ok();
        let kills = kills.map_or(KILLS, |n| n.parse().unwrap());
        let seconds = 2 * PAUSE * kills;
        run(guest, &format!("SECONDS_OF_FIO={seconds}\n{VERIFY}"));
        for _ in 0..kills {
            std::thread::sleep(Duration::from_secs(PAUSE));
            assert!(
                !has_ended(guest),
                "fio ended before the daemon was killed often enough"
            );
            self.daemon.kill();
            self.daemon.start(self.dir.path());
        }
        let deadline = Instant::now() + Duration::from_secs(seconds + 120);
        while !has_ended(guest) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_secs(1));
        }
        run(
            guest,
            "[ \"$(cat /run/fio.status)\" = 0 ] || { cat /run/fio.log >&2; false; }
             ! dmesg | grep 'I/O error' >&2",
        );
        let seen = run(guest, "sum /dev/$(cat /run/disk)");
        let held = Command::new("md5sum").arg(self.path("image")).output();
        let held = String::from_utf8(held.unwrap().stdout).unwrap();
        assert!(held.starts_with(seen.trim()), "image {held}, guest {seen}");
        let image = std::fs::File::options()
            .write(true)
            .open(self.path("image"));
        image.unwrap().set_len(2 * IMAGE).unwrap();
        let mut rescan = program();
        rescan.args(["cache", "set", "disk", "vhost", "--rescan", "--control"]);
        let done = rescan.arg(self.path("control")).status().unwrap();
        assert!(done.success());
        let sectors = 2 * IMAGE / 512;
        run(
            guest,
            &format!(
                "for i in $(seq 100); do
                     [ $(cat /sys/block/$(cat /run/disk)/size) = {sectors} ] && break; sleep 0.1
                 done
                 [ $(cat /sys/block/$(cat /run/disk)/size) = {sectors} ]"
            ),
        );
    }
}

fn has_ended(guest: &Guest) -> bool {
    guest.sh("test -e /run/fio.status").unwrap().status == 0
}
