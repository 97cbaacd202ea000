//! fio over NBD, which reads what it has written and compares checksums.

use std::process::{Command, Output};

/// Random reads and writes of 512 bytes to 16 KiB, 32 of them at a time, all over a disk of so many MiB, of three times as
/// many bytes. Panics when fio reads anything but what it has written.
pub(crate) fn verify(uri: &str, mib: u64) {
    let done = run(uri, mib);
    assert!(done.status.success(), "over {uri}: {done:#?}");
}

fn run(uri: &str, mib: u64) -> Output {
    Command::new("fio")
        .args(["--name=verify", "--ioengine=nbd", "--uri", uri])
        .args(["--rw=randrw", "--bsrange=512-16k", "--bs_unaligned=0"])
        .args(["--blockalign=512", "--iodepth=32", "--fsync=64"])
        .args([format!("--size={mib}M"), format!("--io_size={}M", 3 * mib)])
        .args(["--verify=crc32c", "--verify_fatal=1", "--randseed=7"])
        .args(["--verify_backlog=256", "--verify_state_save=0"])
        .output()
        .unwrap_or_else(|e| panic!("expected fio to be installed (`make deps`): {e}"))
}
