//! Opens an image: with direct I/O where that works, and locked.

use super::raw::RawImage;
use crate::block_dev::{ImageFile, SyncErrors};
use crate::inherited;
use justitia_common::image_format;
use justitia_guest_protocol::puts::{AlignedBuf, PAGE};
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;
use rustix::fs::{AtFlags, OFlags, SeekFrom, StatxFlags, fcntl_getfl, statx};
use rustix::io::pread;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How an image is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenOptions {
    /// Refuse to change it.
    pub read_only: bool,
    /// Bypass the host's page cache where the file system allows it.
    pub direct: bool,
    /// Open it as raw even if it looks like an image of another format.
    pub any_format: bool,
}

impl Default for OpenOptions {
    fn default() -> Self {
        Self {
            read_only: false,
            direct: true,
            any_format: false,
        }
    }
}

/// Advice for an error.
fn hint(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::NotFound => ": name one that exists, or make it (`truncate -s 10G FILE`)",
        io::ErrorKind::PermissionDenied => {
            ": let the user of the cache read and write it, or serve it read-only"
        }
        _ => "",
    }
}

/// Directories that are hidden from a unit with `ProtectHome=yes`, and read-only with `ProtectHome=read-only`.
const HOMES: [&str; 3] = ["/home", "/root", "/run/user"];

/// Advice if the unit's settings may be the cause.
fn unit_hint(path: &Path, error: &io::Error) -> &'static str {
    let kinds = [io::ErrorKind::NotFound, io::ErrorKind::ReadOnlyFilesystem];
    match kinds.contains(&error.kind()) && HOMES.iter().any(|home| path.starts_with(home)) {
        true => {
            "; justitia-cache.service sees /home, /root and /run/user only if `systemctl edit justitia-cache` says `ProtectHome=read-only`, and `ReadWritePaths=` with the directories that it is to write"
        }
        false => "",
    }
}

/// Why an image could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The system refused.
    #[error(
        "cannot open image {path}: expected a raw image or a block device that can be opened, found none: {source}{}{}",
        hint(source),
        unit_hint(path, source)
    )]
    Io {
        /// The image.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// It is something else: what was expected and found, and what to do.
    #[error("cannot open image {path}: {why}")]
    Kind {
        /// The image.
        path: PathBuf,
        /// Its fault.
        why: String,
    },
    /// Another process writes it.
    #[error("cannot open image {path}: {source}")]
    Locked {
        /// The image.
        path: PathBuf,
        /// Why not.
        source: LockError,
    },
}

/// The wait for an image in use before that is an error: the last writes of a killed server may still be in flight.
const LOCK_TIMEOUT: Duration = Duration::from_secs(2);

impl RawImage {
    /// Opens `path`, and locks it against writers. Waits up to 2 s for the last writes of a killed server.
    ///
    /// # Errors
    /// When it cannot be opened, is no image, or is in use.
    pub fn open(path: &Path, options: OpenOptions) -> Result<Self, OpenError> {
        let since = Instant::now();
        loop {
            match Self::try_open(path, options) {
                Err(OpenError::Locked {
                    source: LockError::Busy,
                    ..
                }) if since.elapsed() < LOCK_TIMEOUT => std::thread::sleep(LOCK_TIMEOUT / 40),
                done => return done,
            }
        }
    }

    /// Finds out whether `path` could be opened. Locks and changes nothing.
    ///
    /// # Errors
    /// When it cannot be opened, or is no image.
    pub fn check(path: &Path, options: OpenOptions) -> Result<(), OpenError> {
        let io_error = |source| OpenError::Io {
            path: path.into(),
            source,
        };
        let kind = std::fs::metadata(path).map_err(io_error)?.file_type();
        check_kind(path, kind)?;
        let file = open(path, options.read_only, OFlags::empty()).map_err(io_error)?;
        check_format(path, &file, options)
    }

    fn try_open(path: &Path, options: OpenOptions) -> Result<Self, OpenError> {
        let io_error = |source| OpenError::Io {
            path: path.into(),
            source,
        };
        let found = std::fs::metadata(path).map_err(io_error)?;
        let kind = found.file_type();
        check_kind(path, kind)?;
        let locked = |source| OpenError::Locked {
            path: path.into(),
            source,
        };
        let exclusive = if kind.is_block_device() {
            OFlags::EXCL
        } else {
            OFlags::empty()
        };
        let open_first = |flags: OFlags| {
            open(path, options.read_only, flags | exclusive).map_err(|source| match source.kind() {
                io::ErrorKind::ResourceBusy => locked(LockError::Busy),
                _ => io_error(source),
            })
        };
        let held = inherited::take_image(&found, !options.read_only, options.direct);
        let held = held.filter(is_taken).and_then(with_alignment);
        let was_held = held.is_some();
        let direct = if options.direct && !was_held {
            open_direct(open_first)?
        } else {
            held
        };
        let (file, align) = match direct {
            Some(found) => found,
            None => (open_first(OFlags::empty())?, 1),
        };
        take_locks(&file, options.read_only).map_err(locked)?;
        let size = rustix::fs::seek(&file, SeekFrom::End(0)).map_err(|e| io_error(e.into()))?;
        let direct = align > 1;
        let file = Arc::new(file);
        let buffered = if direct {
            // Opened through /proc, so that it is the locked file even if the path names another by now.
            let again = format!("/proc/self/fd/{}", file.as_raw_fd());
            let again = open(Path::new(&again), options.read_only, OFlags::empty());
            Arc::new(again.map_err(io_error)?)
        } else {
            Arc::clone(&file)
        };
        check_format(path, &buffered, options)?;
        let is_device = kind.is_block_device();
        let dsync = is_device || has_dsync(&file).map_err(|e| io_error(e.into()))?;
        let witness = format!("/proc/self/fd/{}", file.as_raw_fd());
        let witness = open(Path::new(&witness), true, OFlags::empty()).map_err(io_error)?;
        let sync_errors = SyncErrors::new(path.to_owned(), Some(witness));
        Ok(Self {
            file: ImageFile::new(file, align, dsync, sync_errors),
            buffered,
            direct,
            is_device,
            was_held,
            size: size.into(),
        })
    }
}

fn check_kind(path: &Path, kind: std::fs::FileType) -> Result<(), OpenError> {
    if kind.is_file() || kind.is_block_device() {
        return Ok(());
    }
    Err(OpenError::Kind {
        path: path.into(),
        why: format!(
            "expected a regular file or a block device, found {}",
            justitia_common::regular_file::kind(kind)
        ),
    })
}

/// `file` is read through the page cache.
fn check_format(path: &Path, file: &File, options: OpenOptions) -> Result<(), OpenError> {
    if options.any_format {
        return Ok(());
    }
    let size = rustix::fs::seek(file, SeekFrom::End(0)).map_err(io::Error::from);
    let found = size.and_then(|size| foreign(file, size));
    let found = found.map_err(|source| OpenError::Io {
        path: path.into(),
        source,
    })?;
    found.map_or(Ok(()), |found| {
        Err(OpenError::Kind {
            path: path.into(),
            why: format!(
                "expected a raw image, found one that looks like {found}: convert it (`qemu-img convert -O raw`), or serve it through qemu-storage-daemon; if a guest has written that to its raw disk, say `format = \"raw\"` of the disk, or `--format raw`"
            ),
        })
    })
}

/// File systems on which a write with `RWF_DSYNC` is known to be durable when it has ended, direct or not: ext2 to ext4, XFS,
/// Btrfs, F2FS, tmpfs. A FUSE file system, for example, gets no sync then.
const WITH_DSYNC: [i64; 5] = [0xEF53, 0x5846_5342, 0x9123_683E, 0xF2F5_2010, 0x0102_1994];

fn has_dsync(file: &File) -> rustix::io::Result<bool> {
    let found = rustix::fs::fstatfs(file)?.f_type;
    Ok(WITH_DSYNC.contains(&found))
}

/// The image opened for direct I/O, and the alignment of its offsets; `None` where that does not work.
fn open_direct(
    open_first: impl Fn(OFlags) -> Result<File, OpenError>,
) -> Result<Option<(File, u64)>, OpenError> {
    match open_first(OFlags::DIRECT) {
        Ok(file) => Ok(alignment(&file).map(|align| (file, align))),
        Err(OpenError::Io { source, .. }) if source.kind() == io::ErrorKind::InvalidInput => {
            Ok(None)
        }
        Err(e) => Err(e),
    }
}

/// An open image, and the alignment of its offsets: 1 through the page cache.
fn with_alignment(file: File) -> Option<(File, u64)> {
    let align = match fcntl_getfl(&file).ok()?.contains(OFlags::DIRECT) {
        true => alignment(&file)?,
        false => 1,
    };
    Some((file, align))
}

/// The alignment of direct I/O, at least 512; `None` where it does not work.
fn alignment(file: &File) -> Option<u64> {
    let align = stated_alignment(file).max(512);
    let mut buf = AlignedBuf::new(usize::try_from(align).ok()?.max(PAGE));
    pread(file, &mut buf[..usize::try_from(align).ok()?], 0).ok()?;
    Some(align)
}

/// The alignment that the kernel reports (`STATX_DIOALIGN`, Linux 6.1 and later), or else a page. A test read cannot tell: a
/// read of a hole does not reach the disk.
fn stated_alignment(file: &File) -> u64 {
    let found = statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN);
    let says = |mask| StatxFlags::from_bits_retain(mask).contains(StatxFlags::DIOALIGN);
    match found {
        Ok(found) if says(found.stx_mask) && found.stx_dio_offset_align > 0 => {
            found.stx_dio_offset_align.into()
        }
        _ => 4096,
    }
}

fn open(path: &Path, read_only: bool, flags: OFlags) -> io::Result<File> {
    // The flags are those of open(2), which are small positive numbers.
    let flags = i32::try_from((flags | OFlags::CLOEXEC).bits()).map_err(io::Error::other)?;
    File::options()
        .read(true)
        .write(!read_only)
        .custom_flags(flags)
        .open(path)
}

// Detects images of other formats: served raw, a guest would see the format's tables instead of its disk.

/// Formats by the first bytes of their last 512 bytes.
const ENDS: [(&[u8], &str); 2] = [(b"conectix", "VHD"), (b"koly", "DMG")];

/// The format that the image looks like; `None` for raw. `file` must allow reads at any offset.
pub(super) fn foreign(file: &File, size: u64) -> io::Result<Option<&'static str>> {
    if let Some(name) = image_format::of_beginning(&read(file, 0)?) {
        return Ok(Some(name));
    }
    match size.checked_sub(512) {
        Some(end) => Ok(image_format::named(&ENDS, &read(file, end)?)),
        None => Ok(None),
    }
}

fn read(file: &File, at: u64) -> io::Result<Vec<u8>> {
    let mut found = vec![0; 512];
    let count = pread(file, &mut found, at)?;
    found.truncate(count);
    Ok(found)
}

// No other process may write a served image: the cache would not see the change.
//
// The locks are QEMU's (`block/file-posix.c` documents them): open-file-description locks on single bytes,
// one for each permission that is used and one for each that is not shared with others. So QEMU refuses an
// image that Justitia serves, and the other way round. Block devices are also opened with `O_EXCL`, even
// to be read: that keeps out mounts and device mappers, and any other server.
//
// io_uring writes through the locked open file. Requests of a killed process continue in the kernel, and each has a reference
// to the open file: the kernel releases the locks with the last of them.

/// Byte `PERMISSION + p` is locked by a process that uses permission `p`.
const PERMISSION: libc::off_t = 100;
/// Byte `UNSHARED + p` is locked by a process that does not share permission `p` with others.
const UNSHARED: libc::off_t = 200;

const CONSISTENT_READ: libc::off_t = 0;
const WRITE: libc::off_t = 1;
const RESIZE: libc::off_t = 3;

/// Why an image could not be locked.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Another process uses it.
    #[error(
        "expected a file or device that nobody else uses, found it in use (by a QEMU, another `justitia cache serve` or, a block device, by a mount): end that first; writes of a server that was killed count until the disk has answered them"
    )]
    Busy,
    /// The file system has no locks.
    #[error("cannot lock it: {0}")]
    Io(#[from] io::Error),
}

/// Takes the locks. They last while `file` is open, here or in requests in flight.
pub(crate) fn take_locks(file: &File, read_only: bool) -> Result<(), LockError> {
    let used: &[_] = if read_only {
        &[CONSISTENT_READ]
    } else {
        &[CONSISTENT_READ, WRITE, RESIZE]
    };
    // Readers do not allow other writers either: cached blocks would become stale.
    let unshared = [WRITE, RESIZE];
    for p in used {
        set(file, PERMISSION + p)?;
    }
    for p in unshared {
        set(file, UNSHARED + p)?;
    }
    let foreign = used
        .iter()
        .map(|p| UNSHARED + p)
        .chain(unshared.iter().map(|p| PERMISSION + p));
    for byte in foreign {
        if held_by_another(file, byte)? {
            return Err(LockError::Busy);
        }
    }
    Ok(())
}

/// Is the lock against writers taken, by any open file? [`take_locks`] then tells whether it is this one's.
fn is_taken(file: &File) -> bool {
    let again = format!("/proc/self/fd/{}", file.as_raw_fd());
    let again = File::open(again);
    again.is_ok_and(|again| held_by_another(&again, UNSHARED + WRITE).unwrap_or(false))
}

fn record(kind: libc::c_int, byte: libc::off_t) -> libc::flock {
    libc::flock {
        // The kernel's constants are 0 to 2.
        l_type: libc::c_short::try_from(kind).unwrap_or_default(),
        l_whence: 0,
        l_start: byte,
        l_len: 1,
        l_pid: 0,
    }
}

fn set(file: &File, byte: libc::off_t) -> Result<(), LockError> {
    let lock = record(libc::F_RDLCK, byte);
    match fcntl(file, FcntlArg::F_OFD_SETLK(&lock)) {
        Ok(_) => Ok(()),
        Err(nix::errno::Errno::EAGAIN | nix::errno::Errno::EACCES) => Err(LockError::Busy),
        Err(e) => Err(LockError::Io(e.into())),
    }
}

/// Would a write lock conflict? Our own read locks do not count: they belong to this open file.
fn held_by_another(file: &File, byte: libc::off_t) -> Result<bool, LockError> {
    let mut lock = record(libc::F_WRLCK, byte);
    fcntl(file, FcntlArg::F_OFD_GETLK(&mut lock)).map_err(|e| LockError::Io(e.into()))?;
    Ok(libc::c_int::from(lock.l_type) != libc::F_UNLCK)
}

#[cfg(test)]
mod tests {
    use super::*;
    use justitia_common::image_format::{BEGINNINGS, VDI};
    use std::os::unix::fs::FileExt;

    #[test]
    fn other_formats_are_known_and_raw_images_are_none() {
        let of = |at: u64, bytes: &[u8]| {
            let file = tempfile::tempfile().unwrap();
            file.set_len(1 << 20).unwrap();
            file.write_all_at(bytes, at).unwrap();
            foreign(&file, 1 << 20).unwrap()
        };
        for (bytes, name) in BEGINNINGS {
            assert_eq!(of(0, bytes), Some(name));
            assert_eq!(of(512, bytes), None);
        }
        assert_eq!(of(64, &VDI.1), Some("VDI"));
        for (bytes, name) in ENDS {
            assert_eq!(of((1 << 20) - 512, bytes), Some(name));
        }
        // A partition table, a LUKS header, nothing.
        assert_eq!(of(510, &[0x55, 0xaa]), None);
        assert_eq!(of(0, b"LUKS\xba\xbe"), None);
        let empty = tempfile::tempfile().unwrap();
        assert_eq!(foreign(&empty, 0).unwrap(), None);
    }

    #[test]
    fn an_image_in_a_home_that_is_not_there_or_not_writable_may_be_hidden_by_the_unit() {
        use io::ErrorKind::{NotFound, PermissionDenied, ReadOnlyFilesystem};
        for (path, kind, hidden) in [
            ("/home/alice/vm.img", NotFound, true),
            ("/root/vm.img", ReadOnlyFilesystem, true),
            ("/run/user/1000/vm.img", NotFound, true),
            ("/home/alice/vm.img", PermissionDenied, false),
            ("/homes/alice/vm.img", NotFound, false),
        ] {
            let said = OpenError::Io {
                path: path.into(),
                source: kind.into(),
            };
            let said = said.to_string();
            assert_eq!(said.contains("`ProtectHome=read-only`"), hidden, "{said}");
        }
    }
}
