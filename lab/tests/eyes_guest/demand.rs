//! The probes on demand: latencies and shared files against the truth. Contended locks: `locks`.

use std::path::Path;
use std::process::Command;

use super::calls::{SIZE, make};
use super::{Tenant, drop_caches, open};

pub fn compare(directory: &Path) {
    make(&directory.join("source"), SIZE);
    make(&directory.join("target"), SIZE);
    let mut eyes = open();
    assert!(eyes.latencies().unwrap().is_empty());
    eyes.time_calls(true).unwrap();
    eyes.watch_shared_inodes(true).unwrap();
    eyes.watch_locks(true).unwrap();
    drop_caches();

    let owner = Tenant::new("demand owner");
    let user = Tenant::new("demand user");
    assert_eq!(owner.case("path/pread")["read-operations"], 64);
    assert_eq!(user.case("path/readv")["read-operations"], 64);
    owner.case("path/pwrite");
    owner.run(Command::new("fio").args([
        "--name=x",
        "--rw=write",
        "--bs=64k",
        "--size=1m",
        "--fsync=1",
        &format!("--filename={}", directory.join("synced").display()),
    ]));

    let latencies = eyes.latencies().unwrap();
    let [of_owner, of_user] = [&owner, &user].map(|tenant| latencies[&tenant.id]);
    println!("owner {of_owner:?}\nuser {of_user:?}");
    assert_eq!(
        (of_owner.read.count(), of_owner.write.count()),
        (64, 64 + 16)
    );
    assert_eq!((of_user.read.count(), of_user.write.count()), (64, 0));
    assert!((15..=18).contains(&of_owner.sync.count()), "{of_owner:?}");
    // A sync waits for the disk, a cached read does not.
    let [cached, synced] = [of_user.read, of_owner.sync].map(|of| of.sum_ns / of.count());
    assert!(synced > cached, "{synced} {cached}");

    let shared = eyes.shared_inodes(10).unwrap();
    println!("shared {shared:?}");
    let first = shared.first().unwrap();
    let inode = std::fs::metadata(directory.join("source")).unwrap();
    assert_eq!(first.inode, std::os::unix::fs::MetadataExt::ino(&inode));
    assert_eq!(
        (first.uses[0].user, first.uses[0].charged),
        (user.id, owner.id)
    );
    assert!(first.uses[0].bytes > 0 && first.uses[0].bytes <= u64::try_from(SIZE).unwrap());
    assert_eq!(first.cached, u64::try_from(SIZE).unwrap());

    let locks = eyes.lock_contention().unwrap();
    println!("contended locks {locks:?}");
    eyes.time_calls(false).unwrap();
    eyes.watch_locks(false).unwrap();
    assert!(eyes.latencies().unwrap().is_empty());
    assert!(eyes.lock_contention().unwrap().is_empty());
}
