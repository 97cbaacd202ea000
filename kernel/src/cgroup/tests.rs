//! Fake cgroup directories: what is read of them, and how that fails.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use tempfile::TempDir;

use super::{Cgroup, CgroupFs};
use crate::error::{Error, Result};
use crate::io::DevId;
use crate::memory::Limit;

fn tree() -> (TempDir, CgroupFs) {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(dir.path().join("a.slice/b")).unwrap();
    let fs = CgroupFs::open_fixture(dir.path()).unwrap();
    (dir, fs)
}

/// `read` sees `good`, fails to parse `bad`, and reports a missing file as missing and a removed
/// cgroup as gone.
fn case<T: std::fmt::Debug + PartialEq>(
    file: &str,
    good: &str,
    expected: &T,
    bad: &[u8],
    read: impl Fn(&Cgroup) -> Result<T>,
) {
    let (dir, fs) = tree();
    let cgroup = Cgroup::open_at(&fs, Path::new("a.slice/b")).unwrap();
    let path = dir.path().join("a.slice/b").join(file);

    let missing = read(&cgroup).unwrap_err();
    assert!(missing.is_missing() && !missing.is_gone(), "{missing}");
    assert_eq!(missing.path(), path);

    std::fs::write(&path, good).unwrap();
    assert_eq!(&read(&cgroup).unwrap(), expected);

    std::fs::write(&path, bad).unwrap();
    let wrong = read(&cgroup).unwrap_err();
    assert!(matches!(wrong, Error::Parse { .. }), "{wrong}");
    assert_eq!(wrong.path(), path);

    std::fs::write(&path, vec![b'1'; crate::buffer::LIMIT + 1]).unwrap();
    let huge = read(&cgroup).unwrap_err();
    assert!(matches!(huge, Error::TooLarge { .. }), "{huge}");

    std::fs::remove_dir_all(dir.path().join("a.slice")).unwrap();
    assert!(read(&cgroup).unwrap_err().is_gone());
    // Another cgroup reuses the path: the old handle does not read it.
    std::fs::create_dir_all(dir.path().join("a.slice/b")).unwrap();
    std::fs::write(&path, good).unwrap();
    assert!(read(&cgroup).unwrap_err().is_gone());
}

#[test]
fn memory_files() {
    let stat = "anon 1\nfile 2\ninactive_file 3\nactive_file 4\n";
    case("memory.stat", stat, &2, b"anon x\n", |c| {
        Ok(c.memory_stat()?.file)
    });
    case(
        "memory.current",
        "7\n",
        &7,
        b"max\n",
        Cgroup::memory_current,
    );
    let limit = Limit::Bytes(9);
    case("memory.low", "9\n", &limit, b"9 9\n", Cgroup::memory_low);
    case(
        "memory.high",
        "max\n",
        &Limit::Max,
        b"mx\n",
        Cgroup::memory_high,
    );
    case("memory.max", "9\n", &limit, b"\0", Cgroup::memory_max);
    case("memory.events", "max 1\n", &1, b"max", |c| {
        Ok(c.memory_events()?.max)
    });
    case("memory.events.local", "high 1\n", &1, b"high", |c| {
        Ok(c.memory_events_local()?.high)
    });
}

#[test]
fn events_of_swap() {
    let (dir, fs) = tree();
    let cgroup = Cgroup::open_at(&fs, Path::new("a.slice/b")).unwrap();
    let file = dir.path().join("a.slice/b/memory.swap.events");
    assert_eq!(cgroup.swap_high_events().unwrap(), None, "no swap support");
    std::fs::write(&file, "high 3\nmax 4\nfail 5\n").unwrap();
    assert_eq!(cgroup.swap_high_events().unwrap(), Some(3));
    std::fs::write(&file, "high x\n").unwrap();
    assert!(cgroup.swap_high_events().is_err());
}

#[test]
fn weights_may_be_absent() {
    let (dir, fs) = tree();
    let cgroup = fs.root();
    assert_eq!(cgroup.io_weight().unwrap(), None);
    assert_eq!(cgroup.io_bfq_weight().unwrap(), None);
    std::fs::write(dir.path().join("io.weight"), "default 200\n8:0 300\n").unwrap();
    std::fs::write(dir.path().join("io.bfq.weight"), "400\n").unwrap();
    let sda = DevId { major: 8, minor: 0 };
    let weight = cgroup.io_weight().unwrap().unwrap();
    assert_eq!((weight.default.get(), weight.per_device[0].0), (200, sda));
    assert_eq!(cgroup.io_bfq_weight().unwrap().unwrap().default.get(), 400);
    std::fs::write(dir.path().join("io.weight"), "default 0\n").unwrap();
    assert!(matches!(cgroup.io_weight(), Err(Error::Parse { .. })));
}

#[test]
fn processes() {
    let (dir, fs) = tree();
    assert!(fs.root().has_other_processes(1).unwrap_err().is_missing());
    std::fs::write(dir.path().join("cgroup.procs"), "").unwrap();
    assert!(!fs.root().has_other_processes(1).unwrap());
    std::fs::write(dir.path().join("cgroup.procs"), "1\n").unwrap();
    assert!(!fs.root().has_other_processes(1).unwrap());
    assert!(fs.root().has_other_processes(12).unwrap());
}

#[test]
fn names_of_any_bytes() {
    let (dir, fs) = tree();
    let name = OsStr::from_bytes(b"with space\nand \xff\xfe");
    std::fs::create_dir(dir.path().join(name)).unwrap();
    std::fs::write(dir.path().join("cgroup.procs"), "").unwrap();
    std::os::unix::fs::symlink("a.slice", dir.path().join("link")).unwrap();
    let mut names = fs.root().children().unwrap();
    names.sort();
    assert_eq!(names, [OsStr::new("a.slice"), name]);
    let child = fs.root().child(name).unwrap();
    assert_eq!(
        (child.name(), child.parent_id()),
        (Some(name), Some(fs.root().id()))
    );
    let error = child.memory_current().unwrap_err();
    assert!(
        error
            .to_string()
            .contains(r"with space\nand \xFF\xFE/memory.current"),
        "{error}"
    );
    let listed = fs.root().child_entries().unwrap();
    assert!(
        listed
            .iter()
            .any(|entry| entry.name == name && entry.id == child.id())
    );
}

#[test]
fn only_children_are_opened() {
    let (dir, fs) = tree();
    std::fs::write(dir.path().join("file"), "").unwrap();
    std::os::unix::fs::symlink("a.slice", dir.path().join("link")).unwrap();
    for bad in ["", ".", "..", "a.slice/b", "/", "a\0b"] {
        let result = fs.root().child(OsStr::new(bad));
        assert!(matches!(result, Err(Error::InvalidName { .. })), "{bad:?}");
    }
    for bad in ["file", "link"] {
        let result = fs.root().child(OsStr::new(bad));
        assert!(matches!(result, Err(Error::Io { .. })), "{bad:?}");
    }
    assert!(fs.root().child(OsStr::new("absent")).unwrap_err().is_gone());
    let escape = Cgroup::open_at(&fs, Path::new("a.slice/../.."));
    assert!(matches!(escape, Err(Error::InvalidName { .. })));
    let absolute = Cgroup::open_at(&fs, Path::new("/a.slice/b")).unwrap();
    assert_eq!(absolute.path(), Path::new("a.slice/b"));
    assert_eq!(
        Cgroup::open_at(&fs, Path::new("/")).unwrap().id(),
        fs.root().id()
    );
}

#[test]
fn removed_between_two_reads() {
    let (dir, fs) = tree();
    let a = fs.root().child(OsStr::new("a.slice")).unwrap();
    std::fs::write(dir.path().join("a.slice/memory.current"), "1\n").unwrap();
    assert_eq!(a.memory_current().unwrap(), 1);
    assert!(a.is_alive());
    std::fs::remove_dir_all(dir.path().join("a.slice")).unwrap();
    assert!(!a.is_alive());
    assert!(a.memory_current().unwrap_err().is_gone());
    assert!(a.children().unwrap_err().is_gone());
    assert!(a.child(OsStr::new("b")).unwrap_err().is_gone());
    assert!(a.io_weight().unwrap_err().is_gone());
    assert!(a.reclaim(4096, None).unwrap_err().is_gone());
}

#[test]
fn removed_while_read() {
    let (dir, fs) = tree();
    let path = dir.path().join("racing");
    let stop = std::sync::atomic::AtomicBool::new(false);
    let (mut seen, mut gone) = (0_u32, 0_u32);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                std::fs::create_dir(&path).unwrap();
                std::fs::write(path.join("memory.current.new"), "1\n").unwrap();
                std::fs::rename(path.join("memory.current.new"), path.join("memory.current"))
                    .unwrap();
                std::fs::remove_dir_all(&path).unwrap();
            }
        });
        let end = std::time::Instant::now() + std::time::Duration::from_millis(500);
        while std::time::Instant::now() < end {
            let read = fs
                .root()
                .child(OsStr::new("racing"))
                .and_then(|cgroup| cgroup.memory_current());
            match read {
                Ok(value) => {
                    assert_eq!(value, 1);
                    seen += 1;
                }
                // Missing: the directory was there before or after its file.
                Err(error) => {
                    assert!(error.is_gone() || error.is_missing(), "{error}");
                    gone += 1;
                }
            }
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    assert!(gone > 0, "the race was never lost: {seen} reads");
}

#[test]
fn reclaim_writes_one_request() {
    let (dir, fs) = tree();
    let file = dir.path().join("memory.reclaim");
    assert!(fs.root().reclaim(4096, None).unwrap_err().is_missing());
    std::fs::write(&file, "").unwrap();
    assert_eq!(
        fs.root().reclaim(4096, Some(0)).unwrap(),
        super::ReclaimOutcome::Complete
    );
    assert_eq!(std::fs::read(&file).unwrap(), b"4096 swappiness=0");
}

#[test]
fn a_plain_directory_is_no_cgroup2() {
    let dir = tempfile::tempdir().unwrap();
    let error = CgroupFs::open(dir.path()).unwrap_err();
    assert!(matches!(error, Error::NotCgroup2 { .. }), "{error}");
    assert!(
        CgroupFs::open(&dir.path().join("absent"))
            .unwrap_err()
            .is_missing()
    );
}
