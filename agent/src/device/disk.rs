//! The disks among which I/O is divided: block devices without another device below them.
//!
//! The kernel charges a cgroup's I/O to every layer of a stack (partitions, device mapper, md, loop). Limits belong on the
//! lowest one, where the traffic of all layers above meets. A file system of several layers (overlayfs) has no device of its
//! own; its I/O arrives at the disks of its layers.

use std::fs::DirEntry;
use std::path::{Path, PathBuf};

use justitia_kernel::error::is_exhaustion;
use justitia_kernel::io::DevId;

/// A disk: a block device without another device below it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Disk {
    /// Its number, as in a line of `io.weight`.
    pub id: DevId,
    /// Its name in `/sys/block`.
    pub name: String,
    /// Its directory there.
    pub dir: PathBuf,
    /// Its identity: another disk may get the same number and name later.
    pub identity: DiskIdentity,
}

/// Distinguishes a disk from an earlier or later one with the same number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskIdentity {
    /// Its sequence number, which is unique within a boot, and changes with the medium (Linux 5.15 or later).
    Sequence(u64),
    /// Before that: the inode number of its directory in sysfs.
    Inode(u64),
}

impl DiskIdentity {
    /// The disk in this directory of `/sys/block`; `None` if there is none, or it cannot be read now.
    #[must_use]
    pub fn of(dir: &Path) -> Option<Self> {
        Self::read(dir).ok()
    }

    fn read(dir: &Path) -> Result<Self, NoDisk> {
        let sequence = read(&dir.join("diskseq"))?.and_then(|text| text.parse().ok());
        let inode = || rustix::fs::stat(dir).map(|found| Self::Inode(found.st_ino));
        sequence.map_or_else(
            || inode().map_err(|_| NoDisk::Unknown),
            |n| Ok(Self::Sequence(n)),
        )
    }
}

impl Disk {
    /// Its current I/O scheduler, such as `none` or `bfq`.
    #[must_use]
    pub fn scheduler(&self) -> Option<String> {
        justitia_kernel::block::scheduler(&self.dir)
    }
}

/// Every disk below `sys` (`/sys`) that has a size, by name; `None` if the devices, or one of them, cannot be read now.
/// Memory-backed devices (`ram`, `zram`) are not disks.
#[must_use]
pub fn disks(sys: &Path) -> Option<Vec<Disk>> {
    let devices = block_devices(sys).ok()?;
    let unread = |(_, found): &BlockDevice| *found == Err(NoDisk::Unread);
    if devices.iter().any(unread) {
        return None;
    }
    Some(
        devices
            .into_iter()
            .filter_map(|(_, found)| found.ok())
            .collect(),
    )
}

/// A block device's name in `/sys/block`, and its disk, or why it is not a disk.
pub type BlockDevice = (String, Result<Disk, NoDisk>);

/// Every block device below `sys` (`/sys`) except partitions, by name: its disk, or why it is not a disk.
///
/// # Errors
/// [`NoDisk::Unread`] if they cannot be listed now.
pub fn block_devices(sys: &Path) -> Result<Vec<BlockDevice>, NoDisk> {
    let mut devices: Vec<_> = entries(&sys.join("block"))?
        .into_iter()
        .filter_map(|entry| {
            let name = entry.file_name().to_str()?.to_owned();
            let found = disk(&entry.path(), &name);
            Some((name, found))
        })
        .collect();
    devices.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
    Ok(devices)
}

/// The entries of a directory; empty if it does not exist.
///
/// # Errors
/// [`NoDisk::Unread`] if it cannot be read now.
pub(super) fn entries(dir: &Path) -> Result<Vec<DirEntry>, NoDisk> {
    match std::fs::read_dir(dir) {
        Ok(entries) => all_of(entries),
        Err(error) => all_of(std::iter::once(Err(error))),
    }
}

/// The readable items; an error if any could not be read for lack of a resource.
fn all_of<T>(read: impl Iterator<Item = std::io::Result<T>>) -> Result<Vec<T>, NoDisk> {
    let kept = read.filter(|one| one.as_ref().err().is_none_or(is_exhausted));
    kept.collect::<std::io::Result<_>>()
        .map_err(|_| NoDisk::Unread)
}

/// Why a block device is none of the disks among which I/O is divided.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoDisk {
    /// It stores its data in memory.
    #[error("it is in memory")]
    InMemory,
    /// It has no medium, or is not set up.
    #[error("it has no size: no medium, or not set up")]
    Empty,
    /// It is stacked on these devices.
    #[error("it lies on {}, where its I/O is divided", .0.join(", "))]
    Stacked(Vec<String>),
    /// It is backed by a file.
    #[error("it lies on a file, and its I/O is divided where that is")]
    Loop,
    /// Its files in sysfs cannot be read: it is hidden behind another one, or being removed.
    #[error("sysfs does not say its size, its number or what it lies on")]
    Unknown,
    /// The agent has no file descriptor or memory to read its files in sysfs now.
    #[error("its files in sysfs cannot be read now: no file descriptor or no memory for that")]
    Unread,
}

fn disk(dir: &Path, name: &str) -> Result<Disk, NoDisk> {
    if name.starts_with("ram") || name.starts_with("zram") {
        return Err(NoDisk::InMemory);
    }
    let size = read(&dir.join("size"))?.and_then(|text| text.parse::<u64>().ok());
    if size.ok_or(NoDisk::Unknown)? == 0 {
        return Err(NoDisk::Empty);
    }
    let below = names(&dir.join("slaves"))?;
    if !below.is_empty() {
        return Err(NoDisk::Stacked(below));
    }
    if dir.join("loop").exists() {
        return Err(NoDisk::Loop);
    }
    let id = read(&dir.join("dev"))?.and_then(|text| text.parse().ok());
    Ok(Disk {
        id: id.ok_or(NoDisk::Unknown)?,
        name: name.to_owned(),
        dir: dir.to_owned(),
        identity: DiskIdentity::read(dir)?,
    })
}

/// The names in a directory; empty if it does not exist.
fn names(dir: &Path) -> Result<Vec<String>, NoDisk> {
    let names = entries(dir)?.into_iter().map(|entry| entry.file_name());
    Ok(names
        .map(|name| name.to_string_lossy().into_owned())
        .collect())
}

/// The text of a file; `None` if it does not exist, or its device was removed.
fn read(path: &Path) -> Result<Option<String>, NoDisk> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(Some(text.trim().to_owned())),
        Err(error) if is_exhausted(&error) => Err(NoDisk::Unread),
        Err(_) => Ok(None),
    }
}

/// Whether this process or the system lacks a resource now: the error says nothing about the file.
pub(crate) fn is_exhausted(error: &std::io::Error) -> bool {
    rustix::io::Errno::from_io_error(error).is_some_and(is_exhaustion)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    /// A sysfs with devices below `devices/`, linked as the kernel links them.
    pub struct Sys(pub tempfile::TempDir);

    impl Sys {
        /// Adds a disk, or below one, a partition.
        pub fn device(&self, path: &str, number: &str) -> PathBuf {
            let dir = self.0.path().join("devices").join(path);
            std::fs::create_dir_all(dir.join("slaves")).unwrap();
            std::fs::write(dir.join("dev"), format!("{number}\n")).unwrap();
            std::fs::write(dir.join("size"), "2048\n").unwrap();
            for folder in ["dev/block", "block"] {
                std::fs::create_dir_all(self.0.path().join(folder)).unwrap();
            }
            symlink(&dir, self.0.path().join("dev/block").join(number)).unwrap();
            if !path.contains('/') {
                symlink(&dir, self.0.path().join("block").join(path)).unwrap();
            } else {
                std::fs::write(dir.join("partition"), "1\n").unwrap();
            }
            dir
        }

        /// Removes a disk.
        pub fn remove(&self, name: &str, number: &str) {
            for link in [format!("block/{name}"), format!("dev/block/{number}")] {
                std::fs::remove_file(self.0.path().join(link)).unwrap();
            }
            std::fs::remove_dir_all(self.0.path().join("devices").join(name)).unwrap();
        }
    }

    #[test]
    fn a_device_with_others_below_it_is_no_disk() {
        let sys = Sys(tempfile::tempdir().unwrap());
        sys.device("sda", "8:0");
        let part = sys.device("sda/sda1", "8:1");
        sys.device("sdb", "8:16");
        let crypt = sys.device("dm-0", "253:0");
        symlink(&part, crypt.join("slaves/sda1")).unwrap();
        let raid = sys.device("md0", "9:0");
        symlink(&crypt, raid.join("slaves/dm-0")).unwrap();
        symlink(sys.0.path().join("block/sdb"), raid.join("slaves/sdb")).unwrap();

        let names: Vec<String> = disks(sys.0.path())
            .unwrap()
            .into_iter()
            .map(|d| d.name)
            .collect();
        assert_eq!(names, ["sda", "sdb"]);
        let (_, crypt) = block_devices(sys.0.path()).unwrap().remove(0);
        let why = crypt.unwrap_err().to_string();
        assert_eq!(why, "it lies on sda1, where its I/O is divided");
    }

    #[test]
    fn empty_and_memory_devices_are_no_disks() {
        let sys = Sys(tempfile::tempdir().unwrap());
        let empty = sys.device("sr0", "11:0");
        std::fs::write(empty.join("size"), "0\n").unwrap();
        sys.device("zram0", "252:0");
        let a_loop = sys.device("loop0", "7:0");
        std::fs::create_dir(a_loop.join("loop")).unwrap();
        std::fs::write(a_loop.join("loop/backing_file"), "/nowhere\n").unwrap();
        assert_eq!(disks(sys.0.path()), Some(vec![]));
        let why: Vec<_> = block_devices(sys.0.path())
            .unwrap()
            .into_iter()
            .map(|(name, found)| (name, found.unwrap_err()))
            .collect();
        let expected = [
            ("loop0", NoDisk::Loop),
            ("sr0", NoDisk::Empty),
            ("zram0", NoDisk::InMemory),
        ];
        assert_eq!(why, expected.map(|(name, why)| (name.to_owned(), why)));
        assert_eq!(disks(Path::new("/nowhere")), Some(vec![]));
    }

    #[test]
    fn a_disk_differs_from_another_one_of_its_number() {
        let sys = Sys(tempfile::tempdir().unwrap());
        let dir = sys.device("sda", "8:0");
        let identity = || disks(sys.0.path()).unwrap()[0].identity;
        let inode = std::os::unix::fs::MetadataExt::ino(&std::fs::metadata(&dir).unwrap());
        assert_eq!(identity(), DiskIdentity::Inode(inode));
        std::fs::write(dir.join("diskseq"), "17\n").unwrap();
        assert_eq!(identity(), DiskIdentity::Sequence(17));
    }

    #[test]
    fn a_listing_that_breaks_off_for_lack_of_memory_is_none() {
        use std::io::Error;
        let lacks = |errno: rustix::io::Errno| Error::from(errno);
        let listed = |error| all_of([Ok(1), Err(error), Ok(2)].into_iter());
        assert_eq!(listed(lacks(rustix::io::Errno::NOMEM)), Err(NoDisk::Unread));
        assert_eq!(listed(lacks(rustix::io::Errno::NOENT)), Ok(vec![1, 2]));
    }

    #[test]
    fn the_chosen_scheduler() {
        let sys = Sys(tempfile::tempdir().unwrap());
        let dir = sys.device("sda", "8:0");
        let disk = disks(sys.0.path()).unwrap().remove(0);
        assert_eq!(disk.scheduler(), None);
        std::fs::create_dir(dir.join("queue")).unwrap();
        std::fs::write(dir.join("queue/scheduler"), "mq-deadline [bfq] none\n").unwrap();
        assert_eq!(disk.scheduler().as_deref(), Some("bfq"));
    }
}
