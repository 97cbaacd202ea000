//! Where cgroup v2 and other filesystems are mounted, from `/proc/self/mountinfo` (proc_pid_mountinfo(5)).

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use crate::buffer::read_path;
use crate::error::Result;
use crate::io::DevId;
use crate::parse;

/// A cgroup v2 mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CgroupMount {
    /// Where it is mounted.
    pub path: PathBuf,
    /// Whether the mount shows the whole hierarchy of its namespace (`/`), not a part of it that
    /// was bind-mounted.
    pub whole: bool,
    /// Which part of the hierarchy it shows, as this process's cgroup namespace names it.
    pub root: PathBuf,
    /// Whether the mount refuses writes (`ro`), as in most containers.
    pub read_only: bool,
    /// Whether `memory.low` and `memory.min` protect a subtree as a whole
    /// (`memory_recursiveprot`).
    pub recursiveprot: bool,
    /// Whether the root of a cgroup namespace is a delegation: what limits and protects it can be written from outside
    /// only (`nsdelegate`).
    pub nsdelegate: bool,
}

/// The cgroup v2 mounts of a mount table, in its order. Other lines are passed over: the table
/// holds every other filesystem as well.
#[must_use]
pub fn cgroup_mounts(mountinfo: &[u8]) -> Vec<CgroupMount> {
    parse::lines(mountinfo)
        .filter_map(|(_, line)| cgroup_mount(line))
        .collect()
}

/// The mount to use: at `/sys/fs/cgroup` if there is one, otherwise the first that shows the whole
/// hierarchy (on hybrid layouts `/sys/fs/cgroup/unified`), otherwise the first.
#[must_use]
pub fn preferred(mounts: Vec<CgroupMount>) -> Option<CgroupMount> {
    let rank = |mount: &CgroupMount| (!mount.whole, mount.path != Path::new("/sys/fs/cgroup"));
    mounts.into_iter().min_by_key(rank)
}

/// `31 24 0:27 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,memory_recursiveprot`
fn cgroup_mount(line: &[u8]) -> Option<CgroupMount> {
    let mut words = parse::words(line).skip(3);
    let root = words.next()?;
    let path = words.next()?;
    let has = |options: &[u8], wanted: &[u8]| {
        options
            .split(|byte| *byte == b',')
            .any(|option| option == wanted)
    };
    let read_only = has(words.next()?, b"ro");
    let mut after = words.skip_while(|word| *word != b"-").skip(1);
    if after.next()? != b"cgroup2" {
        return None;
    }
    let options = after.nth(1).unwrap_or_default();
    Some(CgroupMount {
        path: PathBuf::from(unescape(path)),
        whole: root == b"/",
        root: PathBuf::from(unescape(root)),
        read_only,
        recursiveprot: has(options, b"memory_recursiveprot"),
        nsdelegate: has(options, b"nsdelegate"),
    })
}

/// Where the filesystem on a device is mounted, in the order of the mount table.
pub(crate) fn mounts_of(device: DevId) -> Result<Vec<PathBuf>> {
    read_path(Path::new("/proc/self/mountinfo"), |table| {
        mounts_on(table, device)
    })
}

/// A mounted file system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mounted {
    /// Its device, as `st_dev` has it.
    pub device: DevId,
    /// The directory in it that is mounted.
    pub root: PathBuf,
    /// Where it is mounted.
    pub path: PathBuf,
    /// Its type, such as `ext4`.
    pub kind: String,
}

/// The mounts in a table (`/proc/self/mountinfo`).
#[must_use]
pub fn mounted(mountinfo: &[u8]) -> Vec<Mounted> {
    parse::lines(mountinfo)
        .filter_map(|(_, line)| {
            let mut words = parse::words(line).skip(2);
            let device = std::str::from_utf8(words.next()?).ok()?.parse().ok()?;
            let root = PathBuf::from(unescape(words.next()?));
            let path = PathBuf::from(unescape(words.next()?));
            let kind = words.skip_while(|word| *word != b"-").nth(1)?;
            Some(Mounted {
                device,
                root,
                path,
                kind: String::from_utf8_lossy(kind).into_owned(),
            })
        })
        .collect()
}

fn mounts_on(mountinfo: &[u8], device: DevId) -> Vec<PathBuf> {
    let mounts = mounted(mountinfo).into_iter();
    let ours = mounts.filter(|mount| mount.device == device);
    ours.map(|mount| mount.path).collect()
}

/// Undoes the kernel's `\ooo` for blanks, newlines and backslashes.
fn unescape(escaped: &[u8]) -> OsString {
    let mut bytes = Vec::with_capacity(escaped.len());
    let mut rest = escaped;
    while let Some((first, tail)) = rest.split_first() {
        let octal = tail.get(..3).filter(|_| *first == b'\\').and_then(octal);
        if let Some(byte) = octal {
            bytes.push(byte);
            rest = tail.get(3..).unwrap_or_default();
        } else {
            bytes.push(*first);
            rest = tail;
        }
    }
    OsString::from_vec(bytes)
}

fn octal(digits: &[u8]) -> Option<u8> {
    digits.iter().try_fold(0_u8, |value, digit| {
        let digit = digit.checked_sub(b'0').filter(|digit| *digit < 8)?;
        value.checked_mul(8)?.checked_add(digit)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNIFIED: &str = "25 30 0:23 / /sys rw shared:7 - sysfs sysfs rw\n\
        31 25 0:27 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate,memory_recursiveprot\n";
    const HYBRID: &str = "10 31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755\n\
        14 35 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
        20 41 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";

    #[test]
    fn unified_and_hybrid() {
        let mounts = cgroup_mounts(UNIFIED.as_bytes());
        let expected = CgroupMount {
            path: PathBuf::from("/sys/fs/cgroup"),
            whole: true,
            root: PathBuf::from("/"),
            read_only: false,
            recursiveprot: true,
            nsdelegate: true,
        };
        assert_eq!(mounts, [expected]);
        let hybrid = preferred(cgroup_mounts(HYBRID.as_bytes())).unwrap();
        assert_eq!(hybrid.path, Path::new("/sys/fs/cgroup/unified"));
        assert!(!hybrid.recursiveprot && !hybrid.read_only);
        let container = "1 2 0:3 / /sys/fs/cgroup ro,nosuid - cgroup2 cgroup rw\n";
        assert!(cgroup_mounts(container.as_bytes())[0].read_only);
    }

    #[test]
    fn sys_fs_cgroup_and_whole_trees_are_preferred() {
        let table = "1 0 0:1 /machine /container/sys/fs/cgroup rw - cgroup2 cgroup2 rw\n\
             2 0 0:1 / /mnt/cg rw - cgroup2 none rw\n\
             3 0 0:1 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
        let mut mounts = cgroup_mounts(table.as_bytes());
        let at = |mounts: &[CgroupMount]| preferred(mounts.to_vec()).unwrap().path;
        assert_eq!(at(&mounts), Path::new("/sys/fs/cgroup"));
        mounts.pop();
        assert_eq!(at(&mounts), Path::new("/mnt/cg"));
        mounts.pop();
        assert_eq!(at(&mounts), Path::new("/container/sys/fs/cgroup"));
        assert_eq!(preferred(vec![]), None);
    }

    #[test]
    fn escapes() {
        let table = b"1 0 0:1 / /mnt/a\\040b\\012\\134\\9 rw - cgroup2 none rw\n";
        let mounts = cgroup_mounts(table);
        assert_eq!(mounts[0].path, Path::new("/mnt/a b\n\\\\9"));
    }

    #[test]
    fn a_device_is_found_wherever_it_is_mounted() {
        let line = b"36 35 98:0 /mnt1 /mnt/a\\040b rw,noatime master:1 - ext3 /dev/root rw";
        let device = |minor| DevId { major: 98, minor };
        assert_eq!(mounts_on(line, device(0)), [PathBuf::from("/mnt/a b")]);
        assert_eq!(mounts_on(line, device(1)), Vec::<PathBuf>::new());
        assert_eq!(mounts_on(b"36 35 98:0", device(0)), Vec::<PathBuf>::new());
    }

    #[test]
    fn mounts_have_their_device_and_type() {
        let table = b"1 0 254:1 /sub /mnt/a\\040b rw shared:3 - ext4 /dev/vda1 rw\nnonsense\n2 0 0:5 / / rw - tmpfs x rw\n";
        let found = mounted(table);
        assert_eq!(found.len(), 2);
        let (major, minor) = (254, 1);
        assert_eq!(found[0].device, DevId { major, minor });
        assert_eq!(found[0].path, Path::new("/mnt/a b"));
        assert_eq!(
            (found[0].root.as_path(), &*found[0].kind),
            (Path::new("/sub"), "ext4")
        );
    }

    #[test]
    fn other_lines_are_passed_over() {
        for table in [
            "",
            "1 2 3",
            "a - cgroup2",
            "1 2 3 / /x - ",
            "1 2 3 / /x rw -",
        ] {
            assert_eq!(cgroup_mounts(table.as_bytes()), [], "{table}");
        }
    }
}
