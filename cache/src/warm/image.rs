//! The state of an image when its daemon ended, and the proof that it is unchanged.
//!
//! A continuously held lock is always a proof: the image's descriptor was handed over. Without that, the change time is a proof
//! under these conditions: no other process had the image open when the daemon ended, the file system is of this machine, and
//! the boot is the same. A later write needs a later open. The write, and the first access to a mapping, set the change time to
//! a later one once the clock has passed the recorded one. Across boots that is no proof: a power failure can keep an
//! overwritten block and lose the change time, which `fdatasync` does not write.

use nix::libc;
use rustix::fs::{SeekFrom, major, minor};
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use std::fs::{File, Metadata};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::time::{Duration, UNIX_EPOCH};

/// An image's identity, and the attributes that change with it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ImageState {
    device: u64,
    inode: u64,
    /// The device number of a block device.
    special: u64,
    /// Bytes.
    size: u64,
    /// Seconds and nanoseconds.
    modified: [i64; 2],
    changed: [i64; 2],
    /// The time of its creation, nanoseconds since 1970, if the file system knows it.
    born: Option<u64>,
    /// No other process had it open.
    pub(crate) alone: Option<Solitude>,
}

/// Conditions that must still hold for an image that was not held.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Solitude {
    boot: String,
    /// The sequence number (`diskseq`) of its file system's disk, which changes when the disk is replaced. `None` for a file
    /// system in memory.
    disk: Option<u64>,
}

impl ImageState {
    /// The current state.
    ///
    /// # Errors
    /// Errors of the system.
    pub(crate) fn of(file: &File) -> io::Result<Self> {
        let found = file.metadata()?;
        let is_device = found.file_type().is_block_device();
        let born = found.created().ok();
        let born = born.and_then(|at| at.duration_since(UNIX_EPOCH).ok());
        Ok(Self {
            device: found.dev(),
            inode: found.ino(),
            special: if is_device { found.rdev() } else { 0 },
            size: rustix::fs::seek(file, SeekFrom::End(0))?,
            // A device node's times do not depend on its content, and change with its owner.
            modified: if is_device {
                [0; 2]
            } else {
                [found.mtime(), found.mtime_nsec()]
            },
            changed: if is_device { [0; 2] } else { changed(&found) },
            born: born.and_then(|at| u64::try_from(at.as_nanos()).ok()),
            alone: None,
        })
    }

    /// Is the image unchanged? `held`: its lock was held continuously.
    ///
    /// # Errors
    /// Why it has changed, or why that is unknown, in words.
    pub(crate) fn check(&self, now: &Self, held: bool) -> Result<(), &'static str> {
        let same = Self {
            alone: None,
            ..self.clone()
        } == Self {
            alone: None,
            ..now.clone()
        };
        if !same {
            return Err("its image has changed, or is another one");
        }
        if held {
            return Ok(());
        }
        match (&self.alone, Solitude::here(self.device)) {
            (None, _) => Err("nothing proves that nobody has written its image meanwhile"),
            (_, None) => Err("nothing proves that its file system is the same"),
            (Some(then), Some(now)) if *then == now => Ok(()),
            _ => Err("the machine was restarted, or the disk of its file system replaced"),
        }
    }

    /// Notes that no other process has the image open, if that holds and helps. `file` must be this process's only open file of
    /// the image, and the one that the state is of.
    pub(crate) fn prove_alone(&mut self, file: &File) {
        self.alone = alone(file, self).ok();
    }
}

fn changed(found: &Metadata) -> [i64; 2] {
    [found.ctime(), found.ctime_nsec()]
}

impl Solitude {
    fn here(device: u64) -> Option<Self> {
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
        let boot = boot.trim().to_owned();
        // A file system in memory has no disk, and no device with its number.
        if major(device) == 0 {
            return Some(Self { boot, disk: None });
        }
        let device = format!("/sys/dev/block/{}:{}", major(device), minor(device));
        // A partition uses the number of its disk.
        let files = [format!("{device}/diskseq"), format!("{device}/../diskseq")];
        let found = files
            .iter()
            .find_map(|file| std::fs::read_to_string(file).ok());
        let disk = Some(found?.trim().parse().ok()?);
        Some(Self { boot, disk })
    }
}

/// Local file systems that set the change time with every write and every first access to a writable mapping: ext2 to ext4,
/// XFS, tmpfs.
const LOCAL: [i64; 3] = [0xEF53, 0x5846_5342, 0x0102_1994];

fn alone(file: &File, state: &ImageState) -> io::Result<Solitude> {
    let of = rustix::fs::fstatfs(file)?.f_type;
    if state.special != 0 || !LOCAL.contains(&of) {
        return Err(io::ErrorKind::Unsupported.into());
    }
    let lease = Lease::take(file)?;
    // No process can open the file during the lease.
    let now = ImageState::of(file)?;
    drop(lease);
    if now != *state {
        return Err(io::Error::other("it was written"));
    }
    Solitude::here(state.device).ok_or_else(|| io::ErrorKind::Unsupported.into())
}

/// From `asm-generic/fcntl.h`: sets the signal of a lease break.
const F_SETSIG: i32 = 10;

/// A write lease: granted only if no other open file has the image.
struct Lease<'a>(&'a File);

impl<'a> Lease<'a> {
    fn take(file: &'a File) -> io::Result<Self> {
        // The signal when a process opens the file meanwhile: SIGURG is ignored by default, while SIGIO would end the process.
        set(file, F_SETSIG, libc::SIGURG)?;
        set(file, libc::F_SETLEASE, libc::F_WRLCK)?;
        Ok(Self(file))
    }
}

impl Drop for Lease<'_> {
    fn drop(&mut self) {
        let _ = set(self.0, libc::F_SETLEASE, libc::F_UNLCK);
    }
}

fn set(file: &File, command: i32, argument: i32) -> io::Result<()> {
    // SAFETY: these commands take a number, and no memory is passed.
    match unsafe { libc::fcntl(file.as_raw_fd(), command, argument) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// Waits until a write would set a later change time than each of these: file systems use the time of the last tick.
///
/// # Errors
/// When that takes over a second, because the clock was set back.
pub(crate) fn wait_for_clock<'a>(
    states: impl IntoIterator<Item = &'a ImageState>,
) -> io::Result<()> {
    let latest = states.into_iter().map(|state| state.changed).max();
    for _ in 0..1000 {
        let now = clock_gettime(ClockId::RealtimeCoarse);
        if latest.is_none_or(|latest| latest < [now.tv_sec, now.tv_nsec]) {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Err(io::Error::other(
        "the change time of an image is later than the clock",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;

    fn image() -> (tempfile::TempDir, std::path::PathBuf, File) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("image");
        std::fs::write(&path, [1; 8192]).unwrap();
        let file = File::options().read(true).write(true).open(&path).unwrap();
        (dir, path, file)
    }

    fn left(file: &File) -> ImageState {
        let mut state = ImageState::of(file).unwrap();
        wait_for_clock([&state]).unwrap();
        state.prove_alone(file);
        state
    }

    #[test]
    fn an_image_that_was_written_is_another() {
        let (_dir, _, file) = image();
        for held in [true, false] {
            let state = left(&file);
            assert_eq!(state.check(&ImageState::of(&file).unwrap(), held), Ok(()));
            file.write_all_at(&[1], 17).unwrap();
            assert!(state.check(&ImageState::of(&file).unwrap(), held).is_err());
        }
    }

    #[test]
    fn times_that_are_set_back_do_not_hide_a_write() {
        let (_dir, _, file) = image();
        let state = left(&file);
        let modified = file.metadata().unwrap().modified().unwrap();
        file.write_all_at(&[1], 17).unwrap();
        file.set_modified(modified).unwrap();
        let now = ImageState::of(&file).unwrap();
        assert_eq!(state.modified, now.modified);
        assert!(state.check(&now, true).is_err());
    }

    #[test]
    fn an_image_that_another_has_open_or_mapped_proves_nothing_unless_it_was_held() {
        let (_dir, path, file) = image();
        assert!(left(&file).alone.is_some());
        let other = File::options().read(true).write(true).open(&path).unwrap();
        let state = left(&file);
        assert_eq!(state.alone, None);
        let now = ImageState::of(&file).unwrap();
        assert!(state.check(&now, false).is_err());
        assert_eq!(state.check(&now, true), Ok(()));
        drop(other);
        assert!(left(&file).alone.is_some());
    }

    #[test]
    fn another_boot_or_disk_proves_nothing() {
        let (_dir, _, file) = image();
        let state = left(&file);
        let now = ImageState::of(&file).unwrap();
        let other = |change: fn(&mut Solitude)| {
            let mut other = state.clone();
            other.alone.as_mut().map(change);
            assert!(other.check(&now, false).is_err());
            assert_eq!(other.check(&now, true), Ok(()));
        };
        other(|alone| alone.boot.push('x'));
        other(|alone| alone.disk = Some(alone.disk.unwrap_or(0) + 1));
    }
}
