//! Who may write a cgroup's files: the administrator alone, or somebody to whom the subtree was delegated
//! (Documentation/admin-guide/cgroup-v2.rst, "Delegation").

use rustix::fs::{AtFlags, Stat};

use super::Cgroup;
use crate::error::{Operation, Result};

/// Whose word a cgroup's file, or the making of cgroups in its directory, is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Authority {
    /// Root's, or this process's own user's: nobody else may write there.
    Administrator,
    /// Somebody else may write there, too.
    Delegate,
}

impl Cgroup {
    /// Who may make cgroups below this one: who may write its directory.
    ///
    /// # Errors
    /// As every operation on a cgroup.
    pub fn authority(&self) -> Result<Authority> {
        rustix::fs::fstat(self)
            .map(|stat| of(&stat))
            .map_err(|errno| self.failed(Operation::Stat, None, errno))
    }

    /// Who may write `file` of this cgroup, `memory.low` say.
    ///
    /// # Errors
    /// As every operation on a cgroup; with [`is_missing`](crate::Error::is_missing) where there is no such file.
    pub fn authority_over(&self, file: &str) -> Result<Authority> {
        rustix::fs::statat(self, file, AtFlags::SYMLINK_NOFOLLOW)
            .map(|stat| of(&stat))
            .map_err(|errno| self.failed(Operation::Stat, Some(file), errno))
    }
}

fn of(stat: &Stat) -> Authority {
    let ours = stat.st_uid == 0 || stat.st_uid == rustix::process::geteuid().as_raw();
    // Cgroupfs has no access control lists: these bits are all there is.
    if ours && stat.st_mode & 0o022 == 0 {
        Authority::Administrator
    } else {
        Authority::Delegate
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cgroup::CgroupFs;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn what_others_may_write_is_not_the_administrators() {
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
            (0o644, Authority::Administrator),
            (0o664, Authority::Delegate),
            (0o646, Authority::Delegate),
        ] {
            mode(&low, bits);
            assert_eq!(a.authority_over("memory.low").unwrap(), expected);
            mode(&cgroup, bits | 0o111);
            assert_eq!(a.authority().unwrap(), expected);
        }
        mode(&cgroup, 0o755);
        mode(&low, 0o644);
        // Only root can give files away.
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(&low, Some(1000), None).unwrap();
            assert_eq!(a.authority_over("memory.low").unwrap(), Authority::Delegate);
            assert_eq!(a.authority().unwrap(), Authority::Administrator);
        }
        assert!(a.authority_over("memory.high").unwrap_err().is_missing());
    }
}
