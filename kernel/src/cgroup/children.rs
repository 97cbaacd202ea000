//! The children of a cgroup, as its directory lists them.

use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt;

use rustix::fs::{FileType, Mode, OFlags, RawDir};
use rustix::io::Errno;

use super::dir::{Cgroup, OPEN};
use super::hierarchy::{CgroupId, Child};
use crate::buffer::with_buffer;
use crate::error::{Operation, Result};

impl Cgroup {
    /// Whether the directory still exists.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        // Listing a removed directory is refused by the VFS (S_DEAD), whichever the filesystem.
        !matches!(
            self.read_directory(|_, _| ControlFlow::Stop),
            Err(Errno::NOENT)
        )
    }

    /// The names of its children, in the directory's order.
    ///
    /// # Errors
    /// [`Error::Gone`](crate::Error::Gone), and as the kernel refuses to list the directory.
    pub fn children(&self) -> Result<Vec<OsString>> {
        let children = self.child_entries()?;
        Ok(children.into_iter().map(|child| child.name).collect())
    }

    /// Its children with their identities, from one listing. Compared with an earlier one it shows every creation, removal
    /// and reuse of a name, without opening anything.
    ///
    /// # Errors
    /// [`Error::Gone`](crate::Error::Gone), and as the kernel refuses to list the directory.
    pub fn child_entries(&self) -> Result<Vec<Child>> {
        let mut children = Vec::new();
        self.read_directory(|name, id| {
            children.push(Child {
                name: OsString::from_vec(name.to_owned()),
                id,
            });
            ControlFlow::Continue
        })
        .map_err(|errno| self.failed(Operation::List, None, errno))?;
        Ok(children)
    }

    /// Calls `visit` for each directory in this one.
    fn read_directory(
        &self,
        mut visit: impl FnMut(&[u8], CgroupId) -> ControlFlow,
    ) -> std::result::Result<(), Errno> {
        let directory = rustix::fs::openat(
            self,
            ".",
            OPEN | OFlags::RDONLY | OFlags::DIRECTORY,
            Mode::empty(),
        )?;
        with_buffer(|buffer| {
            let mut entries = RawDir::new(&directory, buffer.spare_capacity_mut());
            while let Some(entry) = entries.next() {
                let entry = entry?;
                let name = entry.file_name().to_bytes();
                let is_directory = match entry.file_type() {
                    FileType::Directory => true,
                    // Not on cgroupfs, but on some filesystems that hold fixtures.
                    FileType::Unknown => is_directory(&directory, entry.file_name()),
                    _ => false,
                };
                if is_directory
                    && name != b"."
                    && name != b".."
                    && matches!(visit(name, CgroupId(entry.ino())), ControlFlow::Stop)
                {
                    break;
                }
            }
            Ok(())
        })
    }
}

/// Whether to go on with a listing.
enum ControlFlow {
    Continue,
    Stop,
}

fn is_directory(directory: &OwnedFd, name: &std::ffi::CStr) -> bool {
    rustix::fs::statat(directory, name, rustix::fs::AtFlags::SYMLINK_NOFOLLOW)
        .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Directory)
}
