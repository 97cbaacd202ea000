//! The hypervisor cache on a stock kernel: the kernel's own NBD client, block devices as images, and disks that this
//! machine's daemon serves over vhost-user-blk and to QEMU over NBD.
//!
//! In one guest, `justitia cache serve` has an image file, a disk and a loop device served to `/dev/nbd0`, where a
//! file system is made, filled, read back from the cache, trimmed and checked; then the image must hold byte for
//! byte what the client saw. Another writer of what is served is refused. Beside them the guest has virtio disks, one of
//! them of four queues, whose daemon is killed again and again while fio verifies what it has written.

mod vhost;

use std::path::Path;
use std::time::Duration;

use super::cache_script::run_within;
use super::programs::take_along;
use justitia_lab::vm::{DiskSpec, Guest, Vm, VmSpec};
use vhost::VhostDaemon;

/// Bytes of each image.
const IMAGE: u64 = 64 << 20;

/// Blocks of 4 KiB of the file that is read back twice.
const LARGE_BLOCKS: u64 = 16 << 20 >> 12;

/// `serve IMAGE MEMORY` and `stop [SIGNAL]` the cache, `attach` and `detach` the kernel's client over two connections.
const FUNCTIONS: &str = r#"
set -e
serve() { begin justitia cache serve $1 --socket /run/n --control /run/c --memory $2; }
stop() {
    kill -${1:-TERM} $(cat /run/server)
    while [ -d /proc/$(cat /run/server) ]; do sleep 0.1; done
    [ ! -e /run/n ] # It takes its socket with it,
    grep -q stopping /run/log # and says so.
}
attach() { nbd-client -N $1 -unix /run/n /dev/nbd0 -b 4096 -C 2 >&2; }
detach() { nbd-client -d /dev/nbd0 >&2; }
forget() { sync; echo 3 >/proc/sys/vm/drop_caches; }
sum() { forget; md5sum <$1 | cut -d' ' -f1; }
"#;

/// A file system on `/dev/nbd0`: what is written is read back, from the image and then from the cache, and
/// nothing of it is broken by trimming. Prints how many blocks were found in memory while it was read again.
const FILE_SYSTEM: &str = r#"
mkfs.ext4 -q -F -E nodiscard /dev/nbd0 >&2
mount /dev/nbd0 /mnt
dd if=/dev/urandom of=/mnt/large bs=1M count=16 2>&1 | tail -1 >&2
for n in $(seq 40); do echo $n >/mnt/$n; done
contents() { forget; cat /mnt/large /mnt/? /mnt/[134]? | md5sum; }
hits() {
    justitia cache stats --control /run/c --json | tr -d ' \n' | sed 's/.*"memory_hits":\([0-9]*\).*/\1/'
}
written=$(cat /mnt/large /mnt/? /mnt/[134]? | md5sum)
rm /mnt/2?
[ "$(contents)" = "$written" ]
before=$(hits)
[ "$(contents)" = "$written" ]
echo $(($(hits) - before))
fstrim /mnt
[ "$(contents)" = "$written" ]
umount /mnt
e2fsck -fn /dev/nbd0 >&2
"#;

/// Runs a script, whose functions these are, that must succeed.
fn run(guest: &Guest, script: &str) -> String {
    run_within(
        guest,
        &format!("{FUNCTIONS}\n{script}"),
        Duration::from_secs(90),
    )
}

/// Serves an image to the kernel, has a file system made, filled and checked, and compares the image itself.
fn holds_a_file_system(guest: &Guest, image: &str) {
    let name = Path::new(image).file_stem().unwrap().to_str().unwrap();
    run(guest, &format!("serve {image} 32MiB; attach {name}"));
    let hits: u64 = run(guest, FILE_SYSTEM).trim().parse().unwrap();
    assert!(
        hits >= LARGE_BLOCKS,
        "{image}: of a file of {LARGE_BLOCKS} blocks that was read again, {hits} were found in the cache"
    );
    let seen = run(guest, "sum /dev/nbd0; detach; stop");
    let held = run(guest, &format!("sum {image}"));
    assert_eq!(seen, held, "{image} is not what its client saw");
    run(guest, &format!("e2fsck -fn {image} >&2"));
}

/// Another writer of what is served is refused, with the reason.
fn is_locked(guest: &Guest, image: &str, others: &[&str]) {
    run(guest, &format!("serve {image} 1MiB"));
    let second = guest
        .sh(&format!(
            "justitia cache serve {image} --socket /run/second --control /run/d 2>&1"
        ))
        .unwrap();
    assert!(
        second.status != 0 && second.stdout.contains("nobody else uses"),
        "a second server of {image}: {second:?}"
    );
    for other in others {
        let other = guest.sh(other).unwrap();
        assert_ne!(other.status, 0, "beside a server of {image}: {other:?}");
    }
    run(guest, "stop");
}

/// An image with an SSD store on a loop device.
const WITH_SSD: &str = r#"
[ssd]
path = "/dev/loop1"
size = "16MiB"
overwrite = true
[[vm]]
name = "file"
socket = "/run/n"
[[vm.disk]]
name = "file"
image = "/data/file.img"
"#;

/// Whatever is on a block device that was the SSD store, behind the store's mark, cannot be read there any more.
fn the_ssd_store_is_discarded(guest: &Guest) {
    guest
        .push("/run/ssd.toml", 0o600, WITH_SSD.as_bytes())
        .unwrap();
    run(
        guest,
        "dd if=/dev/urandom of=/data/behind-the-ssd bs=1M count=16 2>/dev/null
         losetup /dev/loop1 /data/behind-the-ssd
         begin justitia cache serve --config /run/ssd.toml --control /run/c
         stop INT; forget
         [ $(dd if=/dev/loop1 bs=1M skip=1 count=15 2>/dev/null | tr -d '\\000' | wc -c) = 0 ]
         losetup -d /dev/loop1",
    );
}

#[test]
#[ignore = "minutes: make test-vm"]
fn the_kernels_nbd_client_is_served_images_and_block_devices() {
    let mut daemon = VhostDaemon::new();
    let _turn = crate::agent_guest::turn();
    let vm = Vm::boot(&VmSpec {
        disks: two_disks(),
        qemu_args: daemon.qemu_args(),
        ..VmSpec::default()
    })
    .unwrap();
    let guest = vm.guest();
    daemon.is_survived_by(guest);
    take_along(guest, "nbd-client", "nbd-client");
    take_along(guest, "e2fsck", "e2fsck");
    run(
        guest,
        &format!(
            "modprobe nbd; modprobe loop; mkdir -p /mnt /data; mount /dev/vda /data
             truncate -s {IMAGE} /data/file.img; truncate -s {IMAGE} /data/behind-the-loop
             losetup /dev/loop0 /data/behind-the-loop"
        ),
    );

    holds_a_file_system(guest, "/data/file.img");
    holds_a_file_system(guest, "/dev/vdb");
    holds_a_file_system(guest, "/dev/loop0");

    is_locked(guest, "/data/file.img", &[]);
    is_locked(
        guest,
        "/dev/vdb",
        &["mount /dev/vdb /mnt", "mkfs.ext4 -q -F /dev/vdb"],
    );
    // And it does not take what another uses.
    let mounted = guest
        .sh("mount /dev/vdb /mnt && justitia cache serve /dev/vdb --socket /run/n --control /run/c 2>&1")
        .unwrap();
    assert!(
        mounted.status != 0 && mounted.stdout.contains("nobody else uses"),
        "a server of a mounted disk: {mounted:?}"
    );
    run(guest, "umount /mnt");

    the_ssd_store_is_discarded(guest);

    // Random writes, read back with their checksums, through a cache of an eighth of the disk.
    run(
        guest,
        "serve /dev/vdb 8MiB; attach vdb
         fio --name=verify --filename=/dev/nbd0 --ioengine=libaio --direct=1 --iodepth=16 --rw=randwrite \
             --bssplit=4k/60:16k/30:64k/10 --size=32m --verify=crc32c --verify_fatal=1 --verify_backlog=256 \
             --fsync=64 --minimal >/dev/null
         detach; stop",
    );
}

/// Kills a server of `$IMAGE` while the disk `$DISK` holds back a write of it, starts the next one, and has it write
/// the same block. Prints how many seconds passed until the next server served, and what the block holds when the first
/// write must have arrived.
///
/// `io.max` holds the first server's write back for eight seconds, and nothing of the second server's.
const LATE_WRITE: &str = r#"
slow=/sys/fs/cgroup/slow
mkdir -p $slow
echo "$(cat /sys/block/$DISK/dev) wbps=8192" >$slow/io.max
rm -f /run/n
begin sh -c "echo \$\$ >$slow/cgroup.procs; exec justitia cache serve $SERVE --control /run/c"
server=$(cat /run/server)
nbd-client -N $NAME -unix /run/n /dev/nbd0 -b 4096 >&2
yes old | tr -d '\n' | dd of=/run/old bs=64k count=1 iflag=fullblock 2>/dev/null
yes new | tr -d '\n' | dd of=/run/new bs=64k count=1 iflag=fullblock 2>/dev/null
dd if=/run/old of=/dev/nbd0 bs=64k oflag=direct $HOW 2>/dev/null &
sleep 2
kill -9 $server
killed=$(date +%s)
while [ -d /proc/$server ] && ! grep -q '^State:.Z' /proc/$server/status; do sleep 0.1; done
detach
until rm -f /run/n; serve_next; do
    grep -q 'nobody else uses' /run/log
    [ $(date +%s) -lt $((killed + 60)) ]
done
waited=$(($(date +%s) - killed))
attach $NAME
dd if=/run/new of=/dev/nbd0 bs=64k oflag=direct $HOW 2>/dev/null
sleep 12
detach
echo "$waited $(dd if=$IMAGE bs=64k count=1 iflag=direct 2>/dev/null | head -c 3)"
"#;

/// An image that is served through the page cache.
const BUFFERED: &str = r#"
[[vm]]
name = "buffered"
socket = "/run/n"
[[vm.disk]]
name = "buffered"
image = "/data/buffered.img"
direct = false
"#;

/// A file system, and a disk without one.
fn two_disks() -> Vec<DiskSpec> {
    let disks = [DiskSpec::ext4(512 << 20), DiskSpec::of(None, IMAGE)];
    disks.map(DiskSpec::unthrottled).into()
}

fn boot_with_two_disks() -> Vm {
    let _turn = crate::agent_guest::turn();
    Vm::boot(&VmSpec {
        disks: two_disks(),
        ..VmSpec::default()
    })
    .unwrap()
}

/// A disk may hold a write of a server that was killed. It must be over before the next server writes.
#[test]
#[ignore = "minutes: make test-vm"]
fn a_write_of_a_killed_server_does_not_arrive_after_its_successors() {
    let vm = boot_with_two_disks();
    let guest = vm.guest();
    take_along(guest, "nbd-client", "nbd-client");
    run(
        guest,
        "modprobe nbd; mkdir -p /data; mount /dev/vda /data
         dd if=/dev/zero of=/data/file.img bs=1M count=4; sync
         # The kernel bills the first writer of a file for what is written back of it.
         mkdir /sys/fs/cgroup/slow
         sh -c 'echo $$ >/sys/fs/cgroup/slow/cgroup.procs
                exec dd if=/dev/zero of=/data/buffered.img bs=1M count=4'; sync",
    );
    guest
        .push("/run/buffered.toml", 0o600, BUFFERED.as_bytes())
        .unwrap();
    for (image, disk, how, serve) in [
        ("/dev/vdb", "vdb", "", "/dev/vdb --socket /run/n"),
        (
            "/data/file.img",
            "vda",
            "",
            "/data/file.img --socket /run/n",
        ),
        // Through the page cache it is the flush that waits for the disk.
        (
            "/data/buffered.img",
            "vda",
            "conv=fsync",
            "--config /run/buffered.toml",
        ),
    ] {
        let name = Path::new(image).file_stem().unwrap().to_str().unwrap();
        let script = format!(
            "serve_next() {{ (serve {image} 1MiB) 2>/dev/null; }}
             IMAGE={image} NAME={name} DISK={disk} HOW='{how}' SERVE='{serve}'
             {LATE_WRITE}
             stop"
        );
        let found = run(guest, &script);
        let (waited, content) = found.trim().split_once(' ').unwrap();
        assert_eq!(content, "new", "{serve}: the late write is on the disk");
        let waited: u64 = waited.parse().unwrap();
        assert!(
            waited >= 2,
            "{serve}: nothing was in flight when the next server came, which proves nothing"
        );
    }
}
