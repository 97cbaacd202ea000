//! The probe on demand: shared files against the truth.

use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::Command;

use justitia_kernel::probes::IoProbes;
use rustix::fs::OFlags;

use super::io_calls::{self, Buffer, MIB, SIZE, make};
use super::{Tenant, drop_caches, open};

/// Counted in parts of 16 pages.
const LARGE: usize = 64 * MIB;

pub(super) fn compare(directory: &Path) {
    make(&directory.join("source"), SIZE);
    make(&directory.join("target"), SIZE);
    let mut probes = open();
    probes.trace_shared_inodes(true).unwrap();
    drop_caches();

    let owner = Tenant::new("demand owner");
    let user = Tenant::new("demand user");
    assert_eq!(owner.case("path/pread")["read-operations"], 64);
    assert_eq!(user.case("path/readv")["read-operations"], 64);
    let shared = probes.shared_inodes(10).unwrap();
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

    pages_are_counted_once(&probes, directory, &owner);
}

/// A tenant that reads a little again and again has used that little; one that reads all, all.
fn pages_are_counted_once(probes: &IoProbes, directory: &Path, owner: &Tenant) {
    let large = directory.join("large");
    make(&large, LARGE);
    drop_caches();
    let [all, little, scattered] = ["all", "little", "scattered"].map(Tenant::new);
    let script = format!("cat {0} >/dev/null", large.display());
    owner.run(Command::new("sh").args(["-c", &script]));
    all.run(Command::new("sh").args(["-c", &script]));
    assert_eq!(little.case("demand/little")["bytes"], 1 << 20);
    assert_eq!(scattered.case("demand/scattered")["bytes"], 4 << 20);
    let inode = std::fs::metadata(&large).unwrap().ino();
    let shared = probes.shared_inodes(10).unwrap();
    let large = shared.iter().find(|file| file.inode == inode).unwrap();
    let used = |tenant: &Tenant| {
        let mine = large.uses.iter().find(|one| one.user == tenant.id);
        mine.map_or(0, |one| one.bytes)
    };
    println!(
        "of {} bytes: {}, {} of the first MiB, {} of 4 MiB scattered",
        large.cached,
        used(&all),
        used(&little),
        used(&scattered)
    );
    assert_eq!(used(&all), u64::try_from(LARGE).unwrap());
    // On filesystems with large folios whole ones are used.
    assert!((1 << 20..=4 << 20).contains(&used(&little)));
    if std::env::var_os("PROBES_DIRECTORY").is_some_and(|at| at == "/data") {
        // One part in sixteen is marked: 64, with a standard deviation of 7.75.
        assert!(used(&scattered).abs_diff(4 << 20) < 62 << 16);
        assert_eq!(used(&little), 1 << 20);
    }
}

/// Reads the first MiB a hundred times, or one page of each sixteen once.
pub(super) fn run(name: &str, directory: &Path) {
    let file = io_calls::open(&directory.join("large"), OFlags::RDONLY);
    let mut buffer = Buffer::new(MIB);
    let mut read = |at: usize, size: usize| {
        let at = u64::try_from(at).unwrap();
        file.read_exact_at(buffer.get(size), at).unwrap();
        size
    };
    let bytes = match name {
        "little" => (0..100).map(|_| read(0, MIB)).max().unwrap(),
        _ => (0..LARGE).step_by(16 * 4096).map(|at| read(at, 4096)).sum(),
    };
    println!("\ntruth bytes={bytes}");
}
