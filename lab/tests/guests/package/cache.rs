//! The unit of the hypervisor cache: what systemd stores for it, and what it finds again.

use super::debian::Debian;
use serde_json::Value;

/// Blocks that are read. They fit into the cache's memory.
const BLOCKS: u64 = 1024;

/// fio, which verifies what it has written over NBD. It runs beside the system, and reaches into it for the socket.
fn fio(debian: &Debian, how: &str) {
    debian.ok(&format!(
        "fio --name=v --ioengine=nbd --iodepth=16 --bs=4k --size={}k --minimal --verify_state_save=0 {how} \
         --verify=crc32c --verify_fatal=1 \
         \"--uri=nbd+unix:///web-root?socket=/proc/$(cat /run/systemd.pid)/root/run/justitia/nbd.sock\" >&2",
        4 * BLOCKS
    ));
}

/// Of the blocks of the disk that are looked up, those that are found, in memory and on the SSD.
fn counts(debian: &Debian) -> (u64, u64, u64) {
    let stats = debian.ok("/root/deb justitia cache stats --json");
    let stats: Value = serde_json::from_str(&stats).unwrap();
    let counts = &stats["cache"]["vms"][0]["pools"][0]["counts"];
    let of = |what: &str| counts[what].as_u64().unwrap();
    (of("gets"), of("memory_hits"), of("ssd_hits"))
}

fn unit(debian: &Debian, property: &str) -> String {
    let show = format!("/root/deb systemctl show justitia-cache -p {property} --value");
    debian.ok(&show).trim().to_owned()
}

/// What is read now was cached before: at least nine of ten blocks, as SPECIFICATION 12.47 says.
#[track_caller]
fn finds_what_was_cached(debian: &Debian, how: &str) {
    let before = counts(debian);
    fio(debian, "--rw=read");
    let after = counts(debian);
    let [gets, memory, ssd] = [after.0 - before.0, after.1 - before.1, after.2 - before.2];
    println!("{how}: of {gets} blocks {memory} in memory, {ssd} on the SSD");
    assert!(gets >= BLOCKS, "{how}: {before:?} {after:?}");
    assert!(
        10 * (memory + ssd) >= 9 * gets,
        "{how}: {before:?} {after:?}\n{}",
        debian.ok("/root/deb journalctl -u justitia-cache --no-pager -n 40")
    );
}

/// Waits for a daemon that has not served anything yet.
fn begins_again(debian: &Debian) {
    let fresh = "/root/deb justitia cache stats --json | grep -q '\"gets\": 0,'";
    debian.within(60, fresh);
}

/// Restarted by systemd, and executed again, the unit has what was cached. Under its hardening, too, it gets the
/// kernel's proof that no other process has opened the image. For an image of another user that takes CAP_LEASE.
pub(super) fn survives_restarts(debian: &Debian) {
    debian.ok(
        "truncate -s 40M /debian/data/disk && chown 1000:1000 /debian/data/disk
        cat >/debian/etc/justitia/cache.toml <<'END'
[memory]
size = \"8MiB\"
[[vm]]
name = \"web\"
socket = \"/run/justitia/nbd.sock\"
[[vm.disk]]
name = \"web-root\"
image = \"/data/disk\"
END
        /root/deb systemctl start justitia-cache",
    );
    fio(debian, "--rw=write");
    // Once to have it, and once more to see that it is there.
    fio(debian, "--rw=read");
    finds_what_was_cached(debian, "before");
    let first = unit(debian, "MainPID");
    debian.ok("/root/deb systemctl restart justitia-cache");
    begins_again(debian);
    assert_ne!(unit(debian, "MainPID"), first);
    finds_what_was_cached(debian, "after a restart");

    let first = unit(debian, "MainPID");
    debian.ok("/root/deb systemctl kill -s USR2 justitia-cache");
    begins_again(debian);
    finds_what_was_cached(debian, "after an execution");
    assert_eq!(unit(debian, "MainPID"), first);
    assert_eq!(unit(debian, "NRestarts"), "0");
    debian.step("the cache survives restarts");
}
