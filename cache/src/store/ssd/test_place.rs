//! Places that are accepted as SSD store, and their treatment.

use super::device::MARK_BYTES;
use super::device::{Device, FileDevice};
use super::device::{Foreign, check_place};
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use tempfile::TempDir;

const MIB: u64 = 1 << 20;

fn directory() -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("ssd");
    (dir, path)
}

fn open(path: &Path) -> io::Result<FileDevice> {
    FileDevice::open(path, MIB, Foreign::Refuse)
}

/// A file of mode 600 with this content.
fn private(path: &Path, content: &[u8]) {
    std::fs::write(path, content).unwrap();
    std::fs::set_permissions(path, PermissionsExt::from_mode(0o600)).unwrap();
}

#[test]
fn the_file_is_private_and_removed_at_the_end() {
    let (_dir, path) = directory();
    let device = open(&path).unwrap();
    let mode = std::fs::metadata(&path).unwrap().mode();
    assert_eq!(mode & 0o777, 0o600);
    drop(device);
    assert!(!path.exists());
    // An empty file is taken, if it is for this user alone.
    let left = File::create(&path).unwrap();
    for (mode, fits) in [(0o644, false), (0o620, false), (0o600, true)] {
        left.set_permissions(PermissionsExt::from_mode(mode))
            .unwrap();
        let error = open(&path).err().map(|e| e.to_string());
        assert_eq!(error.is_none(), fits, "{error:?}");
        assert!(error.is_none_or(|why| why.contains("mode 600")));
    }
    assert!(!path.exists());
}

#[test]
fn a_file_that_no_justitia_made_is_neither_taken_nor_removed() {
    let (_dir, path) = directory();
    let mark = {
        let device = open(&path).unwrap();
        let mark = std::fs::read(&path).unwrap();
        drop(device);
        mark
    };
    let marked = usize::try_from(MARK_BYTES).unwrap();
    // A file system that was made on a store later spares its first page.
    let mut reused = mark.clone();
    reused[70_000] = 1;
    let whole = vec![0; 3 << 20];
    for foreign in [b"image".as_slice(), &whole, &reused] {
        private(&path, foreign);
        assert!(check_place(&path, Foreign::Refuse).is_err());
        let found = open(&path).err().map(|e| e.to_string()).unwrap_or_default();
        assert!(found.contains("overwrite"), "{found}");
        assert!(std::fs::read(&path).unwrap() == foreign);
    }
    // Killed: with the mark, or before all of it was written.
    for ours in [&mark[..], &mark[..marked], &mark[..8192]] {
        private(&path, ours);
        check_place(&path, Foreign::Refuse).unwrap();
        drop(open(&path).unwrap());
        assert!(!path.exists());
    }
    private(&path, b"it may be lost");
    drop(FileDevice::open(&path, MIB, Foreign::Overwrite).unwrap());
    assert!(!path.exists());
}

#[test]
fn what_has_lost_its_mark_is_not_removed() {
    let (_dir, path) = directory();
    private(&path, b"");
    let device = open(&path).unwrap();
    let other = File::options().write(true).open(&path).unwrap();
    other.write_all_at(b"another's", 4096).unwrap();
    drop(device);
    assert!(path.exists());
}

#[test]
fn a_failed_start_removes_what_it_has_made_and_nothing_else() {
    let (dir, path) = directory();
    // No file is so large.
    let too_large = u64::MAX / 2;
    assert!(FileDevice::open(&path, too_large, Foreign::Refuse).is_err());
    assert!(!path.exists());
    // One that is in use stays.
    let device = open(&path).unwrap();
    assert!(open(&path).is_err() && path.exists());
    drop(device);
    let link = dir.path().join("link");
    private(&path, b"");
    std::os::unix::fs::symlink(&path, &link).unwrap();
    let found = open(&link).err().map(|e| e.to_string()).unwrap_or_default();
    assert!(found.contains("found a symbolic link"), "{found}");
    assert!(path.exists());
}

#[test]
fn others_must_not_be_able_to_write_the_directory() {
    let (dir, path) = directory();
    let mode = |mode| std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(mode));
    mode(0o777).unwrap();
    let found = open(&path).err().map(|e| e.to_string()).unwrap_or_default();
    assert!(found.contains("mode 777") && !path.exists(), "{found}");
    mode(0o700).unwrap();
    drop(open(&path).unwrap());
}

#[test]
fn no_file_is_made_where_a_device_was_meant() {
    let path = Path::new("/dev/justitia-no-such-device");
    let opened = open(path).map(drop);
    for refused in [check_place(path, Foreign::Refuse), opened] {
        let why = refused.unwrap_err().to_string();
        assert!(why.contains("expected a block device, found none"), "{why}");
    }
    assert!(!path.exists());
    if let Ok(dir) = tempfile::tempdir_in("/dev/shm") {
        drop(open(&dir.path().join("ssd")).unwrap());
    }
}

#[test]
fn another_file_of_the_same_name_is_not_removed() {
    let (dir, path) = directory();
    let device = open(&path).unwrap();
    let moved = dir.path().join("moved");
    std::fs::rename(&path, &moved).unwrap();
    std::fs::write(&path, "another's").unwrap();
    drop(device);
    assert_eq!(std::fs::read(&path).unwrap(), b"another's");
    assert_eq!(std::fs::read(moved).unwrap(), b"");
}

/// Nor is that said to be left by another version.
#[test]
fn what_is_behind_a_broken_mark_is_not_used_again() {
    let (_dir, path) = directory();
    let preamble = crate::warm::Preamble {
        at: 0,
        head: 1,
        records: 0,
        sum: 0,
        seed: 0,
    };
    for (broken, left) in [(false, Some(preamble)), (true, None)] {
        drop(File::create(&path));
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
        let mut device = open(&path).unwrap();
        crate::store::ssd::device::leave(&device.file, &preamble).unwrap();
        if broken {
            // Not directly, which takes memory that is aligned.
            let other = File::options().write(true).open(&path).unwrap();
            other.write_all_at(&[1; 4096], 65_536).unwrap();
        }
        *device.kept.get_mut() = true;
        drop(device);
        let mut next = FileDevice::open(&path, MIB, Foreign::Overwrite).unwrap();
        assert_eq!(*next.left.get_mut(), left);
    }
}

/// A loop device over `file`; `None` where this user can have none.
struct Loop(PathBuf);

impl Loop {
    fn over(file: &Path) -> Option<Self> {
        let run = std::process::Command::new("losetup")
            .args(["--find", "--show"])
            .arg(file)
            .output()
            .ok()?;
        let path = String::from_utf8(run.stdout).ok()?;
        (run.status.success()).then(|| Self(path.trim().into()))
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = std::process::Command::new("losetup")
            .arg("-d")
            .arg(&self.0)
            .status();
    }
}

#[test]
fn a_device_with_something_on_it_is_refused_and_ours_is_discarded() {
    let (dir, _) = directory();
    let behind = dir.path().join("behind");
    let mut options = File::options();
    let file = options
        .read(true)
        .write(true)
        .create_new(true)
        .open(&behind)
        .unwrap();
    file.set_len(8 * MIB).unwrap();
    let Some(device) = Loop::over(&behind) else {
        eprintln!("not tested: no loop device can be had here");
        return;
    };
    // Where the mark will be, in the middle, at the end.
    for at in [600, 4 * MIB + 123, 8 * MIB - 512] {
        file.write_all_at(b"somebody's", at).unwrap();
        file.sync_all().unwrap();
        let found = open(&device.0).err().map(|e| e.to_string());
        assert!(found.is_some_and(|e| e.contains("overwrite")), "{at}");
        let mut there = [0; 10];
        file.read_exact_at(&mut there, at).unwrap();
        assert_eq!(&there, b"somebody's");
        file.write_all_at(&[0; 10], at).unwrap();
        file.sync_all().unwrap();
    }
    let link = dir.path().join("link");
    std::os::unix::fs::symlink(&device.0, &link).unwrap();
    // All of it: a mebibyte of that is the mark.
    let ours = FileDevice::open(&link, 8 * MIB, Foreign::Refuse).unwrap();
    assert_eq!(ours.grow(8 * MIB).unwrap(), 7 * MIB);
    let page = crate::store::ssd::write_buffer::Page([7; 4096]);
    ours.write(&[(0, &page.0), (6 * MIB, &page.0)])
        .into_iter()
        .for_each(Result::unwrap);
    // Killed; the next daemon has a smaller store on it.
    ours.kept.store(true, std::sync::atomic::Ordering::SeqCst);
    drop(ours);
    drop(FileDevice::open(&link, 2 * MIB, Foreign::Refuse).unwrap());
    // Its blocks are gone; the mark stays, so that it is taken again.
    let left = std::fs::read(&behind).unwrap();
    let marked = usize::try_from(MARK_BYTES).unwrap();
    assert!(left[..100].starts_with(b"SSD store"));
    assert!(left[marked..].iter().all(|byte| *byte == 0));
    check_place(&link, Foreign::Refuse).unwrap();
}

/// Closing a store on a hung device must not hang: it reads and removes nothing.
#[test]
fn a_device_that_has_not_answered_is_left_alone() {
    let (_dir, path) = directory();
    private(&path, b"");
    for answers in [false, true] {
        let device = open(&path).unwrap();
        let late = (!answers).then(|| std::sync::Arc::clone(&device.file));
        drop(device);
        assert_eq!(path.exists(), !answers);
        drop(late);
    }
}
