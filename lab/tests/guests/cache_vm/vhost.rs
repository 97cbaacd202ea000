//! Virtio disks of the guest whose daemon runs on this machine: one over vhost-user-blk, and one of QEMU's NBD client.

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use justitia_lab::vm::{Guest, VmSpec};

use super::{IMAGE, run};
use crate::cache_daemon::{Daemon, program};

/// How often the daemon of the virtio disk is executed again, and then killed: so often, or as this variable says.
const KILLS: u64 = 5;
const KILLS_VARIABLE: &str = "JUSTITIA_LAB_VHOST_KILLS";
/// Seconds before each.
const PAUSE: u64 = 3;

/// Random reads and writes of four jobs on each of the disks, each with a part of it, in the background.
const VERIFY: &str = r#"
for disk in /sys/block/vd*; do echo ${disk##*/} >/run/disk.$(cat $disk/serial); done
[ $(ls /sys/block/$(cat /run/disk.vhost)/mq | wc -l) = 4 ]
for serial in vhost nbd; do
    (
        status=0
        fio --name=verify --filename=/dev/$(cat /run/disk.$serial) --ioengine=libaio --direct=1 --iodepth=16 --rw=randrw \
            --numjobs=4 --offset_increment=16m --size=16m --bssplit=4k/60:16k/30:64k/10 --fsync=64 --time_based \
            --runtime=$SECONDS_OF_FIO --verify=crc32c --verify_fatal=1 --verify_backlog=256 --minimal || status=$?
        echo $status >/run/fio.$serial
    ) >/run/fio.$serial.log 2>&1 </dev/null &
done
"#;

/// A daemon of this machine that serves an image over vhost-user-blk, and another one over NBD.
pub(crate) struct VhostDaemon {
    dir: tempfile::TempDir,
    daemon: Daemon,
}

impl VhostDaemon {
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = |name| dir.path().join(name);
        for name in ["image", "nbd.img"] {
            let image = std::fs::File::create(path(name)).unwrap();
            image.set_len(IMAGE).unwrap();
        }
        let config = format!(
            "control = {:?}\n[memory]\nsize = \"16MiB\"\n[[vm]]\nname = \"vm\"\n[[vm.disk]]\nname = \"vhost\"\nimage = {:?}\nvhost = {:?}\n\
             [[vm]]\nname = \"other\"\nsocket = {:?}\n[[vm.disk]]\nname = \"nbd\"\nimage = {:?}\n",
            path("control"),
            path("image"),
            path("socket"),
            path("nbd"),
            path("nbd.img"),
        );
        std::fs::write(path("cache.toml"), config).unwrap();
        let mut daemon = Daemon::default();
        daemon.start(dir.path());
        Self { dir, daemon }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The guest's memory as a file that both sides map, and the disks.
    pub(crate) fn qemu_args(&self) -> Vec<String> {
        let memory = VmSpec::default().memory;
        let socket = self.path("socket");
        let nbd = self.path("nbd");
        let args = [
            "-object".to_owned(),
            format!("memory-backend-memfd,id=memory,size={memory},share=on,seal=on"),
            "-machine".to_owned(),
            "memory-backend=memory".to_owned(),
            "-chardev".to_owned(),
            format!("socket,id=vhost,path={},reconnect=1", socket.display()),
            "-device".to_owned(),
            "vhost-user-blk-pci,chardev=vhost,num-queues=4".to_owned(),
            "-blockdev".to_owned(),
            format!(
                "driver=nbd,node-name=nbd,export=nbd,server.type=unix,server.path={},reconnect-delay=60,cache.direct=on",
                nbd.display()
            ),
            "-device".to_owned(),
            "virtio-blk-pci,drive=nbd,serial=nbd,write-cache=on".to_owned(),
        ];
        args.into()
    }

    /// The guest's disks are verified while their daemon is executed again, and then killed, and are what their images are; the one over
    /// vhost-user-blk grows.
    pub(crate) fn is_survived_by(&mut self, guest: &Guest) {
        let kills = std::env::var(KILLS_VARIABLE).ok();
        let kills = kills.map_or(KILLS, |n| n.parse().unwrap());
        let seconds = 4 * PAUSE * kills;
        run(guest, &format!("SECONDS_OF_FIO={seconds}\n{VERIFY}"));
        let next = || {
            std::thread::sleep(Duration::from_secs(PAUSE));
            assert!(
                !has_ended(guest),
                "fio ended before the daemon was ended often enough"
            );
        };
        for _ in 0..kills {
            next();
            let cut = self.daemon.execute_again(self.dir.path());
            assert_eq!(cut, [] as [String; 0], "clients were cut off");
        }
        for _ in 0..kills {
            next();
            self.daemon.kill();
            self.daemon.start(self.dir.path());
        }
        let deadline = Instant::now() + Duration::from_secs(seconds + 120);
        while !has_ended(guest) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_secs(1));
        }
        for (serial, image) in [("vhost", "image"), ("nbd", "nbd.img")] {
            run(
                guest,
                &format!(
                    "[ \"$(cat /run/fio.{serial})\" = 0 ] || {{ cat /run/fio.{serial}.log >&2; false; }}
                     ! dmesg | grep 'I/O error' >&2"
                ),
            );
            let seen = run(guest, &format!("sum /dev/$(cat /run/disk.{serial})"));
            let held = Command::new("md5sum").arg(self.path(image)).output();
            let held = String::from_utf8(held.unwrap().stdout).unwrap();
            assert!(held.starts_with(seen.trim()), "{serial}: {held}, {seen}");
        }
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
                     [ $(cat /sys/block/$(cat /run/disk.vhost)/size) = {sectors} ] && break; sleep 0.1
                 done
                 [ $(cat /sys/block/$(cat /run/disk.vhost)/size) = {sectors} ]"
            ),
        );
    }
}

fn has_ended(guest: &Guest) -> bool {
    let ended = guest.sh("test -e /run/fio.vhost -a -e /run/fio.nbd");
    ended.unwrap().status == 0
}
