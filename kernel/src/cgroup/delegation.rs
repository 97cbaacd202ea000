//! Delegation to a process of root's own, of which the owners of the files tell nothing: to a container without a user
//! namespace, or to a service with `Delegate=yes`.

use std::os::fd::{AsFd, AsRawFd};
use std::path::{Path, PathBuf};

use rustix::fs::{OFlags, getxattr, readlink};

use super::Cgroup;
use crate::buffer::read_path;
use crate::mount::cgroup_mounts;

/// What systemd sets on the cgroup of a unit with `Delegate=yes`: the first since 236, both since 251.
const MARKS: [&str; 2] = ["trusted.delegate", "user.delegate"];

/// Processes of one cgroup that are looked at: a container's are in one namespace.
const MOST_PROCESSES: usize = 4;

impl Cgroup {
    /// Whether systemd has marked it as delegated. Its cgroup's owner can do that too, and nobody else.
    #[must_use]
    pub fn is_marked_delegated(&self) -> bool {
        let path = format!("/proc/self/fd/{}", self.as_fd().as_raw_fd());
        MARKS.iter().any(|mark| {
            let mut value = [0_u8; 8];
            getxattr(&path, *mark, &mut value[..])
                .is_ok_and(|length| length > 0 && value[0] == b'1')
        })
    }

    /// The root of the cgroup namespace in which processes of this very cgroup are, relative to the mount, if that is
    /// another than ours: this cgroup or one above it.
    ///
    /// Only processes of our own user namespace are asked: in another one the owners of files tell. The mount table of a
    /// process says it, and where it has no cgroup2 mount, or none that shows this cgroup, this cgroup is taken for the
    /// root. `None` where nobody may ask (that takes `CAP_SYS_PTRACE`).
    #[must_use]
    pub fn namespace_root(&self) -> Option<PathBuf> {
        let proc = Path::new("/proc");
        let namespace = |pid: &str, kind: &str| {
            let link = proc.join(pid).join("ns").join(kind);
            readlink(link, Vec::new()).ok()
        };
        let (cgroup, user) = (namespace("self", "cgroup")?, namespace("self", "user")?);
        let pid = self.some_processes().into_iter().find(|pid| {
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

    /// A few of the processes in this very cgroup, as `/proc` calls them.
    fn some_processes(&self) -> Vec<String> {
        let Ok(fd) = self.open("cgroup.procs", OFlags::RDONLY) else {
            return Vec::new();
        };
        let mut text = [0; 64];
        let read = rustix::io::read(&fd, &mut text).unwrap_or(0);
        let text = text.get(..read).unwrap_or_default();
        // What is cut off at the end is no number.
        let whole = text.split_inclusive(|byte| *byte == b'\n');
        whole
            .filter_map(|line| line.strip_suffix(b"\n"))
            .filter_map(|line| String::from_utf8(line.to_owned()).ok())
            .filter(|pid| pid != "0")
            .take(MOST_PROCESSES)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use rustix::fs::{XattrFlags, setxattr};

    use crate::cgroup::CgroupFs;

    #[test]
    fn marks_are_read_and_our_own_namespace_is_none() {
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
        assert_eq!(a.some_processes(), [std::process::id().to_string()]);
        assert_eq!(a.namespace_root(), None);
        assert!(!a.is_marked_delegated());
        // Where the filesystem of the fixture has user attributes.
        for (value, expected) in [("0", false), ("1", true)] {
            if setxattr(
                &path,
                "user.delegate",
                value.as_bytes(),
                XattrFlags::empty(),
            )
            .is_ok()
            {
                assert_eq!(a.is_marked_delegated(), expected);
            }
        }
    }
}
