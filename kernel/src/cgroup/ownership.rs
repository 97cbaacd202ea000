//! The ownership of a cgroup's files: the administrator's alone, or also a delegatee's
//! (Documentation/admin-guide/cgroup-v2.rst, "Delegation").

use rustix::fs::{AtFlags, Stat};

use super::Cgroup;
use crate::error::{Operation, Result};

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
    /// As every operation on a cgroup; with [`is_missing`](crate::Error::is_missing) where there is no such file.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cgroup::CgroupFs;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_file_that_others_may_write_is_a_delegatees() {
        let dir = tempfile::tempdir().unwrap();
        let cgroup = dir.path().join("a");
        let low = cgroup.join("memory.low");
        std::fs::create_dir(&cgroup).unwrap();
        std::fs::write(&low, "0\n").unwrap();
        let fs = CgroupFs::open_fixture(dir.path(), true).unwrap();
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
}
