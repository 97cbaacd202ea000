//! Devices below the hypervisor cache in a guest: a disk that is made larger while it is served, and an SSD that answers
//! nothing any more.

use std::time::Duration;

use super::cache_script::run_within;
use super::programs::take_along;
use justitia_lab::vm::{DiskSpec, Guest, Vm, VmSpec};

/// The configuration, a device mapper's `NAME` over a disk, its size in MiB, and what the tests need of the daemon.
const FUNCTIONS: &str = r#"
set -e
table() { echo "0 $(($2 * 2048)) linear $1 0"; }
mapped() {
    dmsetup create $1 --table "$(table $2 $3)"
    [ -e /dev/mapper/$1 ] || dmsetup mknodes
}
serve() {
    rm -f /run/n
    begin justitia cache serve --config /run/cache.toml --control /run/c
}
# Generous: emulated, on a busy machine.
ends() {
    for i in $(seq 600); do [ -d /proc/$(cat /run/server) ] || return 0; sleep 0.5; done
    echo "it has not ended" >&2
    cat /proc/$(cat /run/server)/task/*/stack >&2
    return 1
}
attach() { nbd-client -N disk -unix /run/n /dev/nbd0 -b 4096 -C 2 >&2; }
detach() { nbd-client -d /dev/nbd0 >&2; }
stats() { justitia cache stats --control /run/c --json; }
verify() {
    fio --name=verify --filename=/dev/nbd0 --ioengine=libaio --direct=1 --iodepth=16 --rw=randrw --bs=4k --size=$1 \
        --offset=$2 --verify=crc32c --verify_fatal=1 --verify_backlog=256 --fsync=64 --minimal >/dev/null
}
# So many MiB behind others: as they are read through the cache, and on the disk.
reads() { dd if=/dev/nbd0 iflag=direct bs=256k count=$(($2 * 4)) skip=$(($1 * 4)) 2>/dev/null | md5sum; }
held() { dd if=/dev/vda iflag=direct bs=256k count=$(($2 * 4)) skip=$(($1 * 4)) 2>/dev/null | md5sum; }
"#;

/// A daemon with a disk on a device mapper, whose blocks go to an SSD on another one.
const CONFIGURATION: &str = r#"
[memory]
size = "1MiB"
[ssd]
path = "/dev/mapper/ssd"
size = "48MiB"
overwrite = true
[[vm]]
name = "vm"
socket = "/run/n"
[[vm.pool]]
name = "default"
store = "ssd"
[[vm.disk]]
name = "disk"
image = "/dev/mapper/disk"
"#;

fn run(guest: &Guest, script: &str) -> String {
    run_within(
        guest,
        &format!("{FUNCTIONS}\n{script}"),
        Duration::from_secs(600),
    )
}

fn boot() -> Vm {
    let _turn = crate::agent_guest::turn();
    let disk = DiskSpec::of(None, 64 << 20).unthrottled();
    let vm = Vm::boot(&VmSpec {
        disks: vec![disk; 2],
        ..VmSpec::default()
    })
    .unwrap();
    let guest = vm.guest();
    take_along(guest, "nbd-client", "nbd-client");
    guest
        .push("/run/cache.toml", 0o600, CONFIGURATION.as_bytes())
        .unwrap();
    run(
        guest,
        "modprobe nbd; modprobe dm_mod; dd if=/dev/urandom of=/dev/vda bs=1M count=64 2>/dev/null",
    );
    vm
}

/// What is new is read and written, and what was there stays.
fn a_device_grows(guest: &Guest) {
    run(
        guest,
        "mapped ssd /dev/vdb 64; mapped disk /dev/vda 32; serve; attach; verify 8m 24m
         before=$(reads 0 32); detach
         if justitia cache set disk disk --size 64MiB --control /run/c 2>/run/early; then exit 1; fi
         grep 'make the device larger first' /run/early
         table /dev/vda 64 | dmsetup reload disk; dmsetup suspend disk; dmsetup resume disk
         justitia cache set disk disk --size 64MiB --control /run/c; attach
         [ $(cat /sys/block/nbd0/size) = 131072 ]
         [ \"$(reads 0 32)\" = \"$before\" ]
         [ \"$(reads 32 32)\" = \"$(held 32 32)\" ]
         verify 16m 28m; detach; kill -INT $(cat /run/server); ends
         dmsetup remove ssd",
    );
}

/// Nothing is read from the SSD: that it answers no writes is noticed all the same, and the disk is served on.
fn an_ssd_that_answers_no_writes_has_failed(guest: &Guest) {
    let told = run(
        guest,
        "mapped ssd /dev/vdb 64; serve; attach; reads 0 4 >/dev/null
         dmsetup suspend --nolockfs --noflush ssd
         for at in 8 16 24 32; do [ \"$(reads $at 8)\" = \"$(held $at 8)\" ]; done
         for i in $(seq 300); do stats | grep '\"failed\": \"' && break; sleep 0.5; done
         stats | grep '\"failed\"'
         [ \"$(reads 0 64)\" = \"$(held 0 64)\" ]
         detach; kill $(cat /run/server); ends; cat /run/log >&2
         dmsetup resume ssd; dmsetup remove ssd",
    );
    assert!(told.contains("has not answered a write"), "{told}");
}

/// SIGTERM while reads and writes of the SSD are under way.
fn the_daemon_ends_beside_an_ssd_that_hangs(guest: &Guest) {
    run(
        guest,
        "mapped ssd /dev/vdb 64; serve; attach
         for i in 1 2; do reads 0 8 >/dev/null; done
         if stats | grep '\"ssd_hits\": 0,'; then exit 1; fi
         dmsetup suspend --nolockfs --noflush ssd
         [ \"$(reads 0 8)\" = \"$(held 0 8)\" ]
         [ \"$(reads 16 8)\" = \"$(held 16 8)\" ]
         if stats | grep '\"failed\": \"'; then exit 1; fi
         detach; kill $(cat /run/server); ends; cat /run/log >&2
         dmsetup resume ssd; serve; attach
         [ \"$(reads 0 64)\" = \"$(held 0 64)\" ]
         detach; kill $(cat /run/server); ends; dmsetup remove ssd",
    );
}

#[test]
#[ignore = "minutes: make test-vm"]
fn devices_grow_and_hang_below_the_cache() {
    let vm = boot();
    let guest = vm.guest();
    a_device_grows(guest);
    an_ssd_that_answers_no_writes_has_failed(guest);
    the_daemon_ends_beside_an_ssd_that_hangs(guest);
}
