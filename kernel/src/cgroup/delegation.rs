//! Delegation to a process that runs as root: to a container without a user namespace, or to a service with
//! `Delegate=yes`. The owners of the files do not show it.

use std::os::fd::{AsFd, AsRawFd};
use std::path::{Path, PathBuf};

use rustix::fs::{getxattr, readlink};

use super::Cgroup;
use crate::buffer::read_path;
use crate::mount::cgroup_mounts;

/// What systemd sets on the cgroup of a unit with `Delegate=yes`: the first since 236, both since 251.
const DELEGATE_XATTRS: [&str; 2] = ["trusted.delegate", "user.delegate"];

/// How many processes of one cgroup are looked at: a container's are in one namespace.
const MAX_PROCESSES: usize = 4;

impl Cgroup {
    /// Whether it has the extended attribute by which systemd marks a delegated cgroup. The owner of the directory can set
    /// that attribute too, and nobody else.
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

#[cfg(test)]
mod tests {
    use rustix::fs::{XattrFlags, setxattr};

    use crate::cgroup::CgroupFs;

    #[test]
    fn delegate_xattrs_are_read_and_our_own_namespace_is_none() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        std::fs::create_dir(&path).unwrap();
        let fs = CgroupFs::open_fixture(dir.path(), true).unwrap();
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
}
