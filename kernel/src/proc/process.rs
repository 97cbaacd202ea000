//! What `/proc` says of one process: enough to tell a manager of the system from other processes.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::buffer::read_path;

/// A process. Its path is one in the process's own mounts: any user can run a program of any name in a mount namespace.
/// The process chooses none of the other fields: they are the kernel's, and the system's managers choose the cgroup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    /// Its number in our process namespace.
    pub pid: u32,
    /// The path of its program; `None` for a thread of the kernel, and where we may not see it.
    pub exe: Option<PathBuf>,
    /// The device and the inode of its program.
    pub program: Option<(u64, u64)>,
    /// Its cgroup below the root of our cgroup namespace, with the first slash.
    pub cgroup: PathBuf,
    /// The user that it acts as.
    pub uid: u32,
}

impl Process {
    /// Reads the process of this number; `None` if there is none.
    #[must_use]
    pub fn read(pid: u32) -> Option<Self> {
        Self::read_in(Path::new("/proc"), pid)
    }

    fn read_in(proc: &Path, pid: u32) -> Option<Self> {
        let dir = proc.join(pid.to_string());
        let uid = std::fs::metadata(&dir).ok()?.uid();
        let cgroup = read_path(&dir.join("cgroup"), cgroup_of).ok()??;
        let exe = dir.join("exe");
        let program = std::fs::metadata(&exe).ok();
        Some(Self {
            pid,
            program: program.map(|found| (found.dev(), found.ino())),
            exe: std::fs::read_link(exe).ok(),
            cgroup,
            uid,
        })
    }
}

/// The cgroup of version 2 in a `/proc/PID/cgroup`.
fn cgroup_of(text: &[u8]) -> Option<PathBuf> {
    let mut lines = text.split(|byte| *byte == b'\n');
    let path = lines.find_map(|line| line.strip_prefix(b"0::"))?;
    Some(OsString::from_vec(path.to_vec()).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_read_and_one_that_is_gone_is_none() {
        let own = Process::read(std::process::id()).unwrap();
        assert_eq!(own.exe, std::env::current_exe().ok());
        assert_eq!(own.uid, rustix::process::geteuid().as_raw());
        assert!(own.program.is_some());
        assert_eq!(Process::read(0), None);
    }

    #[test]
    fn the_cgroup_is_that_of_version_2_whatever_its_name() {
        for (text, expected) in [
            ("0::/a.slice/b\n", Some("/a.slice/b")),
            ("3:memory:/x\n0::/a:b\n", Some("/a:b")),
            ("0::/../c\n", Some("/../c")),
            ("1:name=systemd:/x\n", None),
            ("", None),
        ] {
            let found = cgroup_of(text.as_bytes());
            assert_eq!(found.as_deref(), expected.map(Path::new), "{text}");
        }
    }
}
