//! A file on a disk, opened by its inode number, and its part of the page cache.
//!
//! Inode number and generation identify a file without a path lookup. So no symbolic link can lead elsewhere, and it does
//! not matter under which name a mount namespace shows the file.

#![expect(
    unsafe_code,
    reason = "open_by_handle_at(2) and cachestat(2) have no safe wrapper"
)]

use std::ffi::CString;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{Advice, FileType, Mode, OFlags};
use rustix::io::Errno;

use crate::error::{Error, Operation, Result};
use crate::io::DevId;
use crate::mount::mounts_of;

/// A file, independent of its names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileId {
    /// The filesystem's device, as the kernel numbers it internally (major << 20 | minor).
    pub device: u32,
    /// The inode's number.
    pub inode: u64,
    /// The inode's generation.
    pub generation: u32,
}

impl std::fmt::Display for FileId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let device = DevId::of_kernel(self.device);
        write!(f, "inode {} on {device}", self.inode)
    }
}

const fn numbers(device: u32) -> (u32, u32) {
    let DevId { major, minor } = DevId::of_kernel(device);
    (major, minor)
}

/// A file's pages in the page cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheStat {
    /// Pages in the cache.
    pub cached: u64,
    /// Those of them that are dirty.
    pub dirty: u64,
    /// Those of them that are under writeback.
    pub writeback: u64,
}

/// `ext2`, `ext3` and `ext4`; their handles are the inode's number and generation.
const EXT4: i64 = 0xef53;
const XFS: i64 = 0x5846_5342;

/// A `struct file_handle` of any supported filesystem: its type, and at most three words.
#[repr(C)]
struct Handle {
    bytes: libc::c_uint,
    kind: libc::c_int,
    words: [u32; 3],
}

impl FileId {
    /// Opens it for reading. This takes `CAP_DAC_READ_SEARCH`, and a mount of its filesystem in this mount namespace.
    ///
    /// # Errors
    /// [`Error::Io`] with `ENODEV` when the filesystem is not mounted here, `EOPNOTSUPP` when it is neither ext4 nor
    /// XFS, `ESTALE` when the file was deleted, and as `open_by_handle_at(2)`.
    pub fn open(&self) -> Result<File> {
        // An open on a filesystem without a disk below it (network, FUSE) may block for ever.
        let mut refused = Errno::OPNOTSUPP;
        let device = DevId::of_kernel(self.device);
        let mounts = if device.major != 0 {
            mounts_of(device)?
        } else {
            Vec::new()
        };
        for mount in mounts {
            match self.open_on(&mount) {
                Ok(file) => return Ok(file),
                Err(errno) => refused = errno,
            }
        }
        Err(Error::Io {
            operation: Operation::Open,
            path: self.to_string().into(),
            errno: refused,
        })
    }

    fn open_on(&self, mount: &Path) -> std::result::Result<File, Errno> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::DIRECTORY;
        let mount = CString::new(mount.as_os_str().as_bytes()).map_err(|_| Errno::INVAL)?;
        let mount = rustix::fs::open(mount.as_c_str(), flags, Mode::empty())?;
        if self.on_device(&mount)?.is_none() {
            return Err(Errno::NODEV);
        }
        let magic = rustix::fs::fstatfs(&mount)?.f_type;
        let file = open_handle(&mount, &self.handle(magic)?)?;
        let stat = self.on_device(&file)?.ok_or(Errno::STALE)?;
        if stat.st_ino != self.inode
            || FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile
        {
            return Err(Errno::STALE);
        }
        Ok(File::from(file))
    }

    /// The descriptor's attributes, if it is on the file's device.
    fn on_device(&self, fd: &impl AsFd) -> std::result::Result<Option<rustix::fs::Stat>, Errno> {
        let stat = rustix::fs::fstat(fd)?;
        let found = (
            rustix::fs::major(stat.st_dev),
            rustix::fs::minor(stat.st_dev),
        );
        Ok((found == numbers(self.device)).then_some(stat))
    }

    /// As the filesystem makes it (fs/libfs.c `FILEID_INO32_GEN`; fs/xfs/xfs_export.h).
    fn handle(&self, magic: i64) -> std::result::Result<Handle, Errno> {
        let low = u32::try_from(self.inode & 0xffff_ffff).unwrap_or_default();
        let high = u32::try_from(self.inode >> 32).unwrap_or_default();
        match magic {
            EXT4 if high == 0 => Ok(Handle {
                bytes: 8,
                kind: 1,
                words: [low, self.generation, 0],
            }),
            // struct xfs_fid64: the number in the machine's byte order, then the generation.
            XFS => {
                let [first, second] = if cfg!(target_endian = "little") {
                    [low, high]
                } else {
                    [high, low]
                };
                Ok(Handle {
                    bytes: 12,
                    kind: 0x81,
                    words: [first, second, self.generation],
                })
            }
            _ => Err(Errno::OPNOTSUPP),
        }
    }
}

/// Opens without changing the access time, where that is allowed: for other users' files it takes `CAP_FOWNER`.
fn open_handle(mount: &OwnedFd, handle: &Handle) -> std::result::Result<OwnedFd, Errno> {
    match open_handle_with(mount, handle, libc::O_NOATIME) {
        Err(Errno::PERM) => open_handle_with(mount, handle, 0),
        opened => opened,
    }
}

fn open_handle_with(
    mount: &OwnedFd,
    handle: &Handle,
    flags: libc::c_int,
) -> std::result::Result<OwnedFd, Errno> {
    let flags = flags | libc::O_RDONLY | libc::O_CLOEXEC | libc::O_NONBLOCK;
    // SAFETY: `handle` has the layout of struct file_handle (two ints, then the bytes that the first announces), lives
    // through the call and is only read; the descriptor is open.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_open_by_handle_at,
            mount.as_raw_fd(),
            std::ptr::from_ref(handle),
            flags,
        )
    };
    match i32::try_from(fd) {
        // SAFETY: the kernel has just returned this descriptor, and nothing else owns it.
        Ok(fd) if fd >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        _ => Err(last_errno()),
    }
}

/// The same number on every architecture that we build for.
const CACHESTAT: libc::c_long = 451;

/// The pages of a range of a file that are in the page cache (`cachestat(2)`, since Linux 6.5). A length of 0 means up to
/// the end.
///
/// # Errors
/// `ENOSYS` on older kernels; `EPERM` where this process may not ask about the file; `EOPNOTSUPP` on hugetlbfs.
pub fn cachestat(
    file: &impl AsFd,
    offset: u64,
    length: u64,
) -> std::result::Result<CacheStat, Errno> {
    let range = [offset, length];
    // struct cachestat: cached, dirty, writeback, evicted, recently evicted.
    let mut stat = [0_u64; 5];
    // SAFETY: both arrays have the layout that the kernel reads and writes, and live through the call.
    let done = unsafe {
        libc::syscall(
            CACHESTAT,
            file.as_fd().as_raw_fd(),
            range.as_ptr(),
            stat.as_mut_ptr(),
            0,
        )
    };
    if done != 0 {
        return Err(last_errno());
    }
    let [cached, dirty, writeback, ..] = stat;
    Ok(CacheStat {
        cached,
        dirty,
        writeback,
    })
}

/// Drops a range of a file from the page cache: clean pages that are neither mapped nor in use. The kernel keeps the
/// others, but begins to write dirty ones: call [`cachestat`] first.
///
/// # Errors
/// As `posix_fadvise(2)`.
pub fn drop_page_cache(
    file: &impl AsFd,
    offset: u64,
    length: u64,
) -> std::result::Result<(), Errno> {
    rustix::fs::fadvise(
        file,
        offset,
        std::num::NonZeroU64::new(length),
        Advice::DontNeed,
    )
}

fn last_errno() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: FileId = FileId {
        device: (8 << 20) | 1,
        inode: 0x1_0000_0002,
        generation: 7,
    };

    #[test]
    fn handles_are_as_the_filesystems_make_them() {
        assert_eq!(FILE.to_string(), "inode 4294967298 on 8:1");
        let xfs = FILE.handle(XFS).unwrap();
        assert_eq!((xfs.bytes, xfs.kind), (12, 0x81));
        assert_eq!(xfs.words[2], 7);
        assert_eq!(FILE.handle(EXT4).err(), Some(Errno::OPNOTSUPP));
        let small = FileId { inode: 12, ..FILE };
        let ext4 = small.handle(EXT4).unwrap();
        assert_eq!((ext4.bytes, ext4.kind, ext4.words), (8, 1, [12, 7, 0]));
        assert_eq!(small.handle(0x6969).err(), Some(Errno::OPNOTSUPP));
    }

    #[test]
    fn a_file_on_no_mounted_device_is_refused() {
        let nowhere = FileId {
            device: 0xfff_00001,
            ..FILE
        };
        let error = nowhere.open().unwrap_err();
        assert!(error.to_string().contains("inode"), "{error}");
    }

    #[test]
    fn written_pages_are_cached_and_dirty() {
        let file = tempfile::tempfile().unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, &[1; 20_000], 0).unwrap();
        match cachestat(&file, 0, 0) {
            Ok(stat) => assert_eq!((stat.cached, stat.dirty + stat.writeback > 0), (5, true)),
            // An older kernel, or a sandbox.
            Err(errno) => assert!([Errno::NOSYS, Errno::PERM].contains(&errno), "{errno}"),
        }
    }
}
