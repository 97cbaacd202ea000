//! Finds the blocks of this machine's disks that are in its page cache.
//!
//! A walk through directories finds the files, but only in the kernel's dentry cache (`RESOLVE_CACHED`): files without a dentry
//! have hardly any cached pages. Only directories are read from a disk. `mincore(2)` tells the cached pages of a file,
//! `FS_IOC_FIEMAP` their place on the disk. The metadata of ext4 is in the page cache of the device itself.
//!
//! File systems other than ext4 and XFS, volumes of several disks, and encrypted ones are left out: there the host's block is
//! another one, or has another content.

use std::collections::HashSet;
use std::ffi::CStr;
use std::fs::{self, File};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use justitia_common::page_cache::{WINDOW, cached_pages};
use justitia_guest_protocol::memory::{BLOCK, Cached, Sampler};
use justitia_kernel::PAGE_SIZE;
use justitia_kernel::extents::{Extent, extents};
use justitia_kernel::file::cachestat;
use justitia_kernel::io::DevId;
use justitia_kernel::mount::{Mounted, mounted};
use justitia_kernel::probes::Device;
use rustix::fs::{Dir, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use crate::disks::disks;

/// The time limit of the walk. The host's other requests wait meanwhile.
const LIMIT: Duration = Duration::from_secs(2);
/// The greatest depth of directories.
const MAX_DEPTH: usize = 64;
/// The most files: the walk ends after them. They are remembered, as one may be met again by another name or mount.
const MAX_FILES: usize = 1 << 17;

/// A mount of a file system on a disk, or on a partition of one.
#[derive(Debug, PartialEq, Eq)]
struct Filesystem {
    mount: PathBuf,
    id: DevId,
    /// Its device below `/dev`.
    device: PathBuf,
    /// The disk's index among the reported disks.
    disk: usize,
    /// The device's first byte on the disk, and its size, bytes.
    start: u64,
    size: u64,
}

/// Mounts with blocks of a real disk, and these disks: serial and size.
struct Found {
    filesystems: Vec<Filesystem>,
    disks: Vec<(String, u64)>,
}

/// The cached blocks of the disks. `file`: bytes of files in the page cache.
pub(super) fn cached(seed: u64, file: u64) -> Cached {
    let table = fs::read("/proc/self/mountinfo").unwrap_or_default();
    let found = find(Path::new("/sys"), &mounted(&table));
    let names = found.disks.iter().map(|(serial, size)| (&**serial, *size));
    let mut walk = Walk {
        sampler: Sampler::new(seed, names),
        until: Instant::now() + LIMIT,
        seen: HashSet::new(),
        is_over: false,
        is_refused: false,
    };
    let mut devices = HashSet::new();
    for filesystem in &found.filesystems {
        if devices.insert(filesystem.id) {
            walk.device(filesystem);
        }
        walk.files(filesystem);
    }
    let whole = !walk.is_over && !walk.is_refused;
    walk.sampler.finish(file, whole)
}

fn find(sys: &Path, mounts: &[Mounted]) -> Found {
    let all = disks(&sys.join("block"));
    let mut found = Found {
        filesystems: Vec::new(),
        disks: Vec::new(),
    };
    let mut told: Vec<(DevId, usize)> = Vec::new();
    for mount in mounts {
        if !matches!(&*mount.kind, "ext2" | "ext3" | "ext4" | "xfs") {
            continue;
        }
        let Some(part) = part(sys, mount.device) else {
            continue;
        };
        let device = Device::new(part.disk);
        let disk = all.iter().find(|disk| Some(disk.device) == device);
        // The blocks of loop and device-mapper devices are elsewhere.
        let Some(disk) = disk.filter(|disk| is_real(sys, &disk.name)) else {
            continue;
        };
        let at = told.iter().find(|(device, _)| *device == part.disk);
        let at = at.map(|(_, at)| *at).unwrap_or_else(|| {
            let serial = disk.serial.as_ref().map(|serial| {
                let text = String::from_utf8_lossy(&serial.bytes()).into_owned();
                text.trim_end_matches('\0').to_owned()
            });
            found
                .disks
                .push((serial.unwrap_or_default(), disk.sectors.saturating_mul(512)));
            told.push((part.disk, found.disks.len() - 1));
            found.disks.len() - 1
        });
        found.filesystems.push(Filesystem {
            mount: mount.path.clone(),
            id: mount.device,
            device: Path::new("/dev").join(&part.name),
            disk: at,
            start: part.start,
            size: part.size,
        });
    }
    found
}

/// A disk, or a partition, below `/sys/dev/block`.
struct Part {
    name: String,
    disk: DevId,
    start: u64,
    size: u64,
}

fn part(sys: &Path, device: DevId) -> Option<Part> {
    let directory = fs::canonicalize(sys.join(format!("dev/block/{device}"))).ok()?;
    let sectors = |name: &str| {
        let text = fs::read_to_string(directory.join(name)).ok()?;
        text.trim().parse::<u64>().ok()?.checked_mul(512)
    };
    let is_partition = directory.join("partition").exists();
    let disk = match is_partition {
        true => {
            let text = fs::read_to_string(directory.parent()?.join("dev")).ok()?;
            text.trim().parse().ok()?
        }
        false => device,
    };
    Some(Part {
        name: directory.file_name()?.to_str()?.to_owned(),
        disk,
        start: if is_partition { sectors("start")? } else { 0 },
        size: sectors("size")?,
    })
}

/// Whether it is a device of its own, neither made of others nor of memory.
fn is_real(sys: &Path, name: &str) -> bool {
    sys.join("block").join(name).join("device").exists()
}

struct Walk {
    sampler: Sampler,
    until: Instant,
    /// Visited files: device and inode.
    seen: HashSet<(DevId, u64)>,
    is_over: bool,
    /// A file exists, but could not be opened.
    is_refused: bool,
}

impl Walk {
    fn is_over(&mut self) -> bool {
        self.is_over |= Instant::now() >= self.until;
        self.is_over
    }

    /// Adds the cached pages of the device itself.
    fn device(&mut self, of: &Filesystem) {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
        if let Ok(device) = rustix::fs::open(&of.device, flags, Mode::empty()) {
            let whole = Extent {
                offset: 0,
                place: 0,
                length: of.size,
            };
            self.pages(of, &device, of.size, &[whole]);
        }
    }

    /// Adds the cached pages of files with a cached dentry.
    fn files(&mut self, of: &Filesystem) {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::DIRECTORY;
        let root = rustix::fs::open(&of.mount, flags, Mode::empty());
        let mut open: Vec<Dir> = root.and_then(Dir::new).into_iter().collect();
        while let Some(directory) = open.last_mut() {
            let Some(Ok(entry)) = directory.read() else {
                open.pop();
                continue;
            };
            if self.is_over() {
                return;
            }
            let name = entry.file_name();
            let is_wanted = matches!(
                entry.file_type(),
                FileType::Directory | FileType::RegularFile | FileType::Unknown
            );
            if !is_wanted || name == c"." || name == c".." {
                continue;
            }
            let Some(directory) = open.last() else { return };
            let found = match directory.fd().and_then(|fd| open_cached(fd, name)) {
                Ok(found) => found,
                Err(error) => {
                    // Every such open fails before Linux 5.12, and under a system call filter that forbids it, such as
                    // `RestrictSUIDSGID=` of systemd.
                    self.is_refused |= matches!(error, Errno::PERM | Errno::NOSYS | Errno::INVAL);
                    continue;
                }
            };
            let Ok(stat) = rustix::fs::fstat(&found) else {
                continue;
            };
            match FileType::from_raw_mode(stat.st_mode) {
                FileType::Directory if open.len() < MAX_DEPTH => open.extend(Dir::new(found)),
                FileType::RegularFile => self.file(of, found, &stat),
                _ => {}
            }
        }
    }

    fn file(&mut self, of: &Filesystem, file: OwnedFd, stat: &rustix::fs::Stat) {
        let size = u64::try_from(stat.st_size).unwrap_or(0);
        let is_cached = cachestat(&file, 0, 0).map_or(true, |stat| stat.cached > 0);
        if size == 0 || !is_cached || !self.seen.insert((of.id, stat.st_ino)) {
            return;
        }
        self.is_over |= self.seen.len() > MAX_FILES;
        if let Ok(extents) = extents(&file) {
            self.pages(of, &File::from(file), size, &extents);
        }
    }

    /// Adds the cached pages of a file with these extents.
    fn pages(&mut self, of: &Filesystem, file: &impl AsFd, size: u64, extents: &[Extent]) {
        let sampler = &mut self.sampler;
        let mut first = 0;
        while first < size.div_ceil(PAGE_SIZE) {
            let bytes = (first * PAGE_SIZE, WINDOW * PAGE_SIZE);
            let is_cached = cachestat(file, bytes.0, bytes.1).map_or(true, |stat| stat.cached > 0);
            if is_cached {
                let done = cached_pages(file, first, size, |page| {
                    if let Some(block) = block(extents, page * PAGE_SIZE, of.start) {
                        sampler.add(of.disk, block);
                    }
                });
                if done.is_err() {
                    return;
                }
            }
            first += WINDOW;
            if Instant::now() >= self.until {
                self.is_over = true;
                return;
            }
        }
    }
}

/// The disk's block at an offset of a file. `start`: the first byte of the file system's device on the disk.
fn block(extents: &[Extent], offset: u64, start: u64) -> Option<u64> {
    let after = extents.partition_point(|extent| extent.offset <= offset);
    let extent = extents.get(after.checked_sub(1)?)?;
    let within = offset - extent.offset;
    let place = start.checked_add(extent.place)?.checked_add(within)?;
    (within < extent.length && place.is_multiple_of(BLOCK)).then_some(place / BLOCK)
}

/// Opens a file by its cached dentry, within the file system and without changing the access time.
fn open_cached(directory: impl AsFd, name: &CStr) -> Result<OwnedFd, Errno> {
    let resolve = ResolveFlags::CACHED | ResolveFlags::NO_XDEV | ResolveFlags::NO_SYMLINKS;
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let open = |flags| rustix::fs::openat2(directory.as_fd(), name, flags, Mode::empty(), resolve);
    match open(flags | OFlags::NOATIME) {
        Err(Errno::PERM) => open(flags),
        opened => opened,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{FileExt as _, symlink};

    #[test]
    fn a_place_of_a_file_has_a_block_of_the_disk() {
        let extents = [
            Extent {
                offset: 0,
                place: 8192,
                length: 8192,
            },
            Extent {
                offset: 16_384,
                place: 1024,
                length: 4096,
            },
            Extent {
                offset: 20_480,
                place: 40_960,
                length: 4096,
            },
        ];
        let of = |page: u64, start| block(&extents, page * 4096, start);
        assert_eq!(
            [0, 1, 5].map(|page| of(page, 0)),
            [Some(2), Some(3), Some(10)]
        );
        assert_eq!(of(1, 1 << 20), Some(256 + 3));
        // A hole, an extent that is not aligned to a block, and an offset behind the end.
        assert_eq!([2, 3, 4, 6].map(|page| of(page, 0)), [None; 4]);
        assert_eq!(of(4, 3072), Some(1));
        assert_eq!(block(&[], 0, 0), None);
    }

    /// A `/sys` with a disk of two partitions, one without, a loop device and a volume.
    fn sys() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let put = |name: &str, text: &str| {
            let path = dir.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        for (name, device, serial) in [("vda", "254:0", "root"), ("vdb", "254:16", "")] {
            put(&format!("block/{name}/dev"), device);
            put(&format!("block/{name}/size"), "2097152\n");
            put(&format!("block/{name}/serial"), serial);
            put(&format!("block/{name}/device/x"), "");
        }
        for (name, device) in [("loop0", "7:0"), ("dm-0", "253:0")] {
            put(&format!("block/{name}/dev"), device);
            put(&format!("block/{name}/size"), "100\n");
        }
        for (name, device, start) in [("vda1", "254:1", "2048"), ("vda2", "254:2", "1050624")] {
            put(&format!("block/vda/{name}/partition"), "1");
            put(&format!("block/vda/{name}/start"), start);
            put(&format!("block/vda/{name}/size"), "1048576\n");
            put(&format!("block/vda/{name}/dev"), device);
        }
        fs::create_dir_all(dir.path().join("dev/block")).unwrap();
        for (device, at) in [
            ("254:0", "vda"),
            ("254:1", "vda/vda1"),
            ("254:2", "vda/vda2"),
            ("254:16", "vdb"),
            ("7:0", "loop0"),
            ("253:0", "dm-0"),
        ] {
            let link = dir.path().join("dev/block").join(device);
            symlink(dir.path().join("block").join(at), link).unwrap();
        }
        dir
    }

    #[test]
    fn file_systems_are_found_on_their_disks() {
        let table = "1 0 254:1 /part /part rw - ext4 a rw\n2 0 254:1 / /whole rw - ext4 a rw\n\
            3 0 254:2 / /second rw - xfs a rw\n4 0 254:16 / /b rw - ext4 a rw\n5 0 7:0 / /l rw - ext4 a rw\n\
            6 0 253:0 / /d rw - ext4 a rw\n7 0 254:0 / /btrfs rw - btrfs a rw\n8 0 259:9 / /gone rw - ext4 a rw\n";
        let sys = sys();
        let found = find(sys.path(), &mounted(table.as_bytes()));
        assert_eq!(
            found.disks,
            [("root".to_owned(), 1 << 30), (String::new(), 1 << 30)]
        );
        let told: Vec<_> = found
            .filesystems
            .iter()
            .map(|of| {
                (
                    of.mount.to_str().unwrap(),
                    of.device.to_str().unwrap(),
                    of.disk,
                    of.start,
                )
            })
            .collect();
        assert_eq!(
            told,
            [
                ("/part", "/dev/vda1", 0, 2048 * 512),
                ("/whole", "/dev/vda1", 0, 2048 * 512),
                ("/second", "/dev/vda2", 0, 1_050_624 * 512),
                ("/b", "/dev/vdb", 1, 0),
            ]
        );
    }

    #[test]
    fn cached_files_of_a_tree_are_counted() {
        let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        fs::create_dir(dir.path().join("sub")).unwrap();
        let file = File::create(dir.path().join("sub/file")).unwrap();
        file.write_all_at(&[1; 64 << 10], 0).unwrap();
        file.sync_all().unwrap();
        fs::hard_link(dir.path().join("sub/file"), dir.path().join("again")).unwrap();
        if extents(&file).is_err() {
            return eprintln!("not tested: the file system does not tell where files lie");
        }
        let mut walk = Walk {
            sampler: Sampler::new(1, [("", u64::MAX)]),
            until: Instant::now() + Duration::from_secs(600),
            seen: HashSet::new(),
            is_over: false,
            is_refused: false,
        };
        let of = Filesystem {
            mount: dir.path().to_owned(),
            id: DevId { major: 1, minor: 1 },
            device: PathBuf::from("/nonexistent"),
            disk: 0,
            start: 0,
            size: 0,
        };
        walk.device(&of);
        walk.files(&of);
        let told = walk.sampler.clone().finish(0, true);
        assert_eq!(told.disks()[0].bytes, 64 << 10);
        // Without time nothing is visited, and the answer says so.
        walk.until = Instant::now();
        walk.files(&of);
        assert!(walk.is_over);
    }
}
