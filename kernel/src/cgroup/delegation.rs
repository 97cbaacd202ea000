//! Ownership of a cgroup: the owners of its files, delegation to processes of root, and the agent's marks.

use std::collections::VecDeque;
use std::os::fd::{AsFd, AsRawFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Stat, XattrFlags, getxattr, listxattr, readlink, removexattr, setxattr};
use rustix::io::Errno;

use super::dir::Cgroup;
use super::fs::CgroupFs;
use crate::buffer::read_path;
use crate::error::{Operation, Result};
use crate::mount::cgroup_mounts;

/// Which users may write a file of a cgroup, or make cgroups in its directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ownership {
    /// Only root, or this process's own user.
    Admin,
    /// Another user, too.
    Delegatee,
}

impl Cgroup {
    /// Which users may make cgroups below this one, by the mode and owner of its directory.
    ///
    /// # Errors
    /// As every operation on a cgroup.
    pub fn ownership(&self) -> Result<Ownership> {
        rustix::fs::fstat(self)
            .map(|stat| of(&stat))
            .map_err(|errno| self.failed(Operation::Stat, None, errno))
    }

    /// Which users may write `file` of this cgroup, such as `memory.low`.
    ///
    /// # Errors
    /// As every operation on a cgroup; with [`is_missing`](crate::error::Error::is_missing) where there is no such file.
    pub fn file_ownership(&self, file: &str) -> Result<Ownership> {
        rustix::fs::statat(self, file, AtFlags::SYMLINK_NOFOLLOW)
            .map(|stat| of(&stat))
            .map_err(|errno| self.failed(Operation::Stat, Some(file), errno))
    }
}

fn of(stat: &Stat) -> Ownership {
    let ours = stat.st_uid == 0 || stat.st_uid == rustix::process::geteuid().as_raw();
    // Cgroupfs has no access control lists: owner and mode say all.
    if ours && stat.st_mode & 0o022 == 0 {
        Ownership::Admin
    } else {
        Ownership::Delegatee
    }
}

// Delegation to a process that runs as root: to a container without a user namespace, or to a service with
// `Delegate=yes`. The owners of the files do not show it.

/// What systemd sets on the cgroup of a unit with `Delegate=yes`: the first since 236, both since 251.
const DELEGATE_XATTRS: [&str; 2] = ["trusted.delegate", "user.delegate"];

/// How many processes of one cgroup are looked at: a container's are in one namespace.
const MAX_PROCESSES: usize = 4;

impl Cgroup {
    /// Whether it has the extended attribute by which systemd marks a delegated cgroup. The owner of the directory can set
    /// that attribute, too, and no other user but root.
    #[must_use]
    pub fn has_delegate_xattr(&self) -> bool {
        let path = format!("/proc/self/fd/{}", self.as_fd().as_raw_fd());
        DELEGATE_XATTRS.iter().any(|name| {
            let mut value = [0_u8; 8];
            getxattr(&path, *name, &mut value[..])
                .is_ok_and(|length| length > 0 && value[0] == b'1')
        })
    }

    /// The root of the cgroup namespace in which processes of this very cgroup are, relative to the mount, if it is not
    /// this process's own namespace: this cgroup or one above it.
    ///
    /// Only processes in this process's user namespace are looked at; in another one, the owners of files show the
    /// delegation. The root is read from the process's mount table. If that has no cgroup2 mount, or none that shows this
    /// cgroup, this cgroup is taken for the root. `None` where `/proc` refuses (it takes `CAP_SYS_PTRACE`).
    #[must_use]
    pub fn namespace_root(&self) -> Option<PathBuf> {
        let proc = Path::new("/proc");
        let namespace = |pid: &str, kind: &str| {
            let link = proc.join(pid).join("ns").join(kind);
            readlink(link, Vec::new()).ok()
        };
        let (cgroup, user) = (namespace("self", "cgroup")?, namespace("self", "user")?);
        let pid = self.some_processes(MAX_PROCESSES).into_iter().find(|pid| {
            namespace(pid, "user").is_some_and(|found| found == user)
                && namespace(pid, "cgroup").is_some_and(|found| found != cgroup)
        })?;
        let mounts = read_path(&proc.join(pid).join("mountinfo"), cgroup_mounts);
        let roots = mounts.unwrap_or_default().into_iter().filter_map(|mount| {
            let root = mount.root.strip_prefix("/").ok()?.to_owned();
            (self.path().starts_with(&root) && root != Path::new("")).then_some(root)
        });
        let deepest = roots.max_by_key(|root| root.components().count());
        Some(deepest.unwrap_or_else(|| self.path().to_owned()))
    }
}

// Marks on cgroups: extended attributes, which live as long as the cgroup and not as long as the agent.

/// `trusted` attributes are read and set with `CAP_SYS_ADMIN` in the initial user namespace alone: no owner of a cgroup can
/// forge or remove one.
const PREFIX: &str = "trusted.justitia.";
/// The longest mark that is read, bytes.
const MAX_MARK: usize = 4096;
/// The kernel lists no more names than this, bytes (`XATTR_LIST_MAX`).
const MAX_NAMES: usize = 64 << 10;
/// The most cgroups that are searched for marks, those of the administrator first. A delegatee can make any number.
const MAX_SEARCHED: usize = 50_000;

/// A mark that was found.
#[derive(Clone, Debug)]
pub struct Mark {
    /// The cgroup that has it.
    pub cgroup: Cgroup,
    /// Its value.
    pub value: Vec<u8>,
}

impl Cgroup {
    /// Sets the mark `name` to `value`.
    ///
    /// # Errors
    /// As every operation on a cgroup; `EPERM` without `CAP_SYS_ADMIN` in the initial user namespace.
    pub fn set_mark(&self, name: &str, value: &[u8]) -> Result<()> {
        setxattr(
            self.link(),
            format!("{PREFIX}{name}"),
            value,
            XattrFlags::empty(),
        )
        .map_err(|errno| self.failed(Operation::Write, None, errno))
    }

    /// Removes the mark `name`. That it does not exist is no error.
    ///
    /// # Errors
    /// As of [`Cgroup::set_mark`].
    pub fn remove_mark(&self, name: &str) -> Result<()> {
        match removexattr(self.link(), format!("{PREFIX}{name}")) {
            Ok(()) | Err(Errno::NODATA) => Ok(()),
            Err(errno) => Err(self.failed(Operation::Write, None, errno)),
        }
    }

    /// The values of its marks; none where they cannot be read.
    fn marks(&self, names: &mut [u8]) -> Vec<Vec<u8>> {
        let link = self.link();
        let length = listxattr(&link, &mut *names).unwrap_or(0);
        let names = names.get(..length).unwrap_or_default();
        let ours = names
            .split(|byte| *byte == 0)
            .filter(|name| name.starts_with(PREFIX.as_bytes()));
        ours.filter_map(|name| {
            let mut value = vec![0; MAX_MARK];
            let length = getxattr(&link, name, &mut value[..]).ok()?;
            value.truncate(length);
            Some(value)
        })
        .collect()
    }

    /// The directory by a path, as extended attributes want it: its descriptor is none that was opened for reading.
    fn link(&self) -> String {
        format!("/proc/self/fd/{}", self.as_fd().as_raw_fd())
    }
}

impl CgroupFs {
    /// The marks of all cgroups, parents first, the root included. Cgroups that come or go meanwhile may be left out, and so
    /// may some of a delegatee's that has tens of thousands.
    #[must_use]
    pub fn marks(&self) -> Vec<Mark> {
        let mut names = vec![0; MAX_NAMES];
        let mut found = Vec::new();
        // Paths, not handles: each handle is a descriptor.
        let mut next = VecDeque::from([PathBuf::new()]);
        let mut delegated = VecDeque::new();
        for _ in 0..MAX_SEARCHED {
            let (path, is_delegated) = match (next.pop_front(), delegated.is_empty()) {
                (Some(path), _) => (path, false),
                (None, false) => (delegated.pop_front().unwrap_or_default(), true),
                (None, true) => break,
            };
            let Ok(cgroup) = Cgroup::open_at(self, &path) else {
                continue;
            };
            let is_delegated = is_delegated
                || cgroup.has_delegate_xattr()
                || !matches!(cgroup.ownership(), Ok(Ownership::Admin));
            let children = cgroup.children().unwrap_or_default();
            let children = children.into_iter().map(|name| path.join(name));
            let level = if is_delegated {
                &mut delegated
            } else {
                &mut next
            };
            let room = (2 * MAX_SEARCHED).saturating_sub(level.len());
            level.extend(children.take(room));
            found.extend(cgroup.marks(&mut names).into_iter().map(|value| Mark {
                cgroup: cgroup.clone(),
                value,
            }));
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    use rustix::fs::{XattrFlags, setxattr};

    use crate::cgroup::fs::CgroupFs;

    #[test]
    fn a_file_that_others_may_write_is_a_delegatees() {
        let dir = tempfile::tempdir().unwrap();
        let cgroup = dir.path().join("a");
        let low = cgroup.join("memory.low");
        std::fs::create_dir(&cgroup).unwrap();
        std::fs::write(&low, "0\n").unwrap();
        let fs = CgroupFs::open_fixture(dir.path()).unwrap();
        let a = fs.root().child("a".as_ref()).unwrap();
        let mode = |path, bits| {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(bits)).unwrap();
        };
        for (bits, expected) in [
            (0o644, Ownership::Admin),
            (0o664, Ownership::Delegatee),
            (0o646, Ownership::Delegatee),
        ] {
            mode(&low, bits);
            assert_eq!(a.file_ownership("memory.low").unwrap(), expected);
            mode(&cgroup, bits | 0o111);
            assert_eq!(a.ownership().unwrap(), expected);
        }
        mode(&cgroup, 0o755);
        mode(&low, 0o644);
        // Only root can give files away.
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(&low, Some(1000), None).unwrap();
            assert_eq!(
                a.file_ownership("memory.low").unwrap(),
                Ownership::Delegatee
            );
            assert_eq!(a.ownership().unwrap(), Ownership::Admin);
        }
        assert!(a.file_ownership("memory.high").unwrap_err().is_missing());
    }

    #[test]
    fn delegate_xattrs_are_read_and_our_own_namespace_is_none() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        std::fs::create_dir(&path).unwrap();
        let fs = CgroupFs::open_fixture(dir.path()).unwrap();
        let a = fs.root().child("a".as_ref()).unwrap();
        std::fs::write(
            path.join("cgroup.procs"),
            format!("0\n{}\n12", std::process::id()),
        )
        .unwrap();
        assert_eq!(a.some_processes(4), [std::process::id().to_string()]);
        assert_eq!(a.namespace_root(), None);
        assert!(!a.has_delegate_xattr());
        // Only root sets `trusted` attributes, and not every file system has `user` ones.
        let mut tested = 0;
        for name in super::DELEGATE_XATTRS {
            for (value, expected) in [("0", false), ("1", true)] {
                if setxattr(&path, name, value.as_bytes(), XattrFlags::empty()).is_ok() {
                    assert_eq!(a.has_delegate_xattr(), expected, "{name}");
                    tested += 1;
                }
            }
            let _ = rustix::fs::removexattr(&path, name);
        }
        assert!(
            tested > 0,
            "no attribute could be set at {}",
            path.display()
        );
    }

    #[test]
    fn marks_are_found_wherever_they_are_until_they_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("a/b")).unwrap();
        std::fs::create_dir_all(dir.path().join("c")).unwrap();
        let fs = CgroupFs::open_fixture(dir.path()).unwrap();
        assert!(fs.marks().is_empty());
        let inner = Cgroup::open_at(&fs, "a/b".as_ref()).unwrap();
        if inner.set_mark("x", b"1").is_err() {
            // Not root, or a file system without such attributes.
            return;
        }
        inner.set_mark("x", b"2").unwrap();
        fs.root().set_mark("y z", b"").unwrap();
        // What others may have set there.
        let other = setxattr(
            dir.path().join("c"),
            "trusted.justice",
            b"3",
            XattrFlags::empty(),
        );
        other.unwrap();
        let found = || -> Vec<(PathBuf, Vec<u8>)> {
            let marks = fs.marks().into_iter();
            marks
                .map(|mark| (mark.cgroup.path().to_owned(), mark.value))
                .collect()
        };
        assert_eq!(
            found(),
            [(PathBuf::new(), Vec::new()), ("a/b".into(), b"2".to_vec())]
        );
        inner.remove_mark("x").unwrap();
        inner.remove_mark("x").unwrap();
        assert_eq!(found().len(), 1);
    }
}
