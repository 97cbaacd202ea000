//! Marks on cgroups: extended attributes, which live as long as the cgroup, whoever made them.

use std::collections::VecDeque;
use std::os::fd::{AsFd, AsRawFd};
use std::path::PathBuf;

use rustix::fs::{XattrFlags, getxattr, listxattr, removexattr, setxattr};
use rustix::io::Errno;

use super::{Cgroup, CgroupFs, Ownership};
use crate::error::{Operation, Result};

/// `trusted` attributes are read and set with `CAP_SYS_ADMIN` in the initial user namespace alone: no owner of a cgroup can
/// forge or remove one.
const PREFIX: &str = "trusted.justitia.";
/// The longest mark that is read, bytes.
const MAX_MARK: usize = 4096;
/// The kernel lists no more names than this, bytes (`XATTR_LIST_MAX`).
const MAX_NAMES: usize = 64 << 10;
/// So many cgroups are searched for marks, those of the administrator first. A delegatee can make any number.
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

    #[test]
    fn marks_are_found_wherever_they_are_until_they_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("a/b")).unwrap();
        std::fs::create_dir_all(dir.path().join("c")).unwrap();
        let fs = CgroupFs::open_fixture(dir.path(), true).unwrap();
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
