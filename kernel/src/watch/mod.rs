//! Changes in the cgroup tree, by inotify: no need to list thousands of directories to learn that nothing changed.
//!
//! What cgroupfs reports (kernels 6.1 and 6.12): the `mkdir` and `rmdir` of children and writes
//! by userspace come through the VFS; a change of `cgroup.events` comes from the kernel itself
//! (`kernfs_notify`), but only while the file's inode is in memory, so the watcher keeps it open. The
//! watch of a removed directory reports nothing (kernfs keeps its link count), that of its parent does. So a watch is
//! dropped when its parent's watch reports the removal.

pub mod writers;

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

use rustix::fs::{OFlags, inotify};
use rustix::io::Errno;

use crate::cgroup::{Cgroup, CgroupId};
use crate::error::{Error, Operation, Result};

/// Something that happened in a watched cgroup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WatchEvent {
    /// A child was created. When this is read it may be removed again, or its name reused.
    CgroupCreated {
        /// The cgroup in which it was created.
        parent: CgroupId,
        /// The child's name.
        name: OsString,
    },
    /// A child was removed. Its watch, if it had one, is dropped.
    CgroupRemoved {
        /// The cgroup from which it was removed.
        parent: CgroupId,
        /// The child's name.
        name: OsString,
        /// The child, if it was watched.
        id: Option<CgroupId>,
    },
    /// A process, maybe this one, wrote to one of the cgroup's files. Some files
    /// (`memory.events`, …) are reported here when the kernel changes them.
    FileWritten {
        /// The cgroup.
        id: CgroupId,
        /// The file's name.
        name: OsString,
    },
    /// The cgroup's `cgroup.events` changed: it became populated or empty, frozen or thawed.
    PopulatedChanged {
        /// The cgroup.
        id: CgroupId,
    },
    /// The kernel's queue was full and events are lost: list the tree again.
    Overflow,
}

/// Watches cgroup directories, each for itself; not recursive.
///
/// Needs `/proc`. Costs one inotify watch (`fs.inotify.max_user_watches`) and two file descriptors a cgroup.
#[derive(Debug)]
pub struct TreeWatcher {
    inotify: OwnedFd,
    watches: HashMap<i32, Watch>,
    by_id: HashMap<CgroupId, i32>,
    /// Watched children by parent and name, because the parent's events have names only.
    by_name: HashMap<(CgroupId, OsString), CgroupId>,
}

#[derive(Debug)]
struct Watch {
    cgroup: Cgroup,
    /// Keeps the inode of `cgroup.events` in memory; `None` at the root, which has none.
    _events: Option<OwnedFd>,
}

impl TreeWatcher {
    /// A watcher of nothing yet.
    ///
    /// # Errors
    /// `EMFILE` when this user has too many (`fs.inotify.max_user_instances`).
    pub fn new() -> Result<Self> {
        let flags = inotify::CreateFlags::NONBLOCK | inotify::CreateFlags::CLOEXEC;
        let inotify = inotify::init(flags).map_err(|errno| Error::Io {
            operation: Operation::Watch,
            path: PathBuf::from("inotify"),
            errno,
        })?;
        Ok(Self {
            inotify,
            watches: HashMap::new(),
            by_id: HashMap::new(),
            by_name: HashMap::new(),
        })
    }

    /// Watches `cgroup`. Earlier changes are not reported: list its children after this.
    ///
    /// # Errors
    /// [`Error::Gone`]; `ENOSPC` when `fs.inotify.max_user_watches` is used up (see
    /// [`is_watch_limit`]), where the caller can fall back on listing the tree now and then.
    pub fn add(&mut self, cgroup: &Cgroup) -> Result<()> {
        let failed = |errno| cgroup.failed(Operation::Watch, None, errno);
        // inotify takes only paths; this one leads to the directory that the handle holds.
        let path = format!("/proc/self/fd/{}", cgroup.as_fd().as_raw_fd());
        let mask = inotify::WatchFlags::CREATE
            | inotify::WatchFlags::DELETE
            | inotify::WatchFlags::MODIFY
            | inotify::WatchFlags::ONLYDIR;
        let wd = inotify::add_watch(&self.inotify, path, mask).map_err(failed)?;
        let events = match cgroup.open("cgroup.events", OFlags::PATH) {
            Ok(events) => Some(events),
            Err(error) if error.is_missing() => None,
            Err(error) => {
                // Removed meanwhile, or out of descriptors: keep no watch without its file.
                if !self.watches.contains_key(&wd) {
                    self.drop_watch(wd);
                }
                return Err(error);
            }
        };
        if let Some(key) = name_key(cgroup)
            && let Some(former) = self.by_name.insert(key, cgroup.id())
            && former != cgroup.id()
        {
            // The name was reused before the former cgroup's removal was read.
            if let Some(wd) = self.by_id.remove(&former) {
                self.drop_watch(wd);
            }
        }
        self.by_id.insert(cgroup.id(), wd);
        let cgroup = cgroup.clone();
        self.watches.insert(
            wd,
            Watch {
                cgroup,
                _events: events,
            },
        );
        Ok(())
    }

    /// Stops watching the cgroup; nothing happens if it is not watched.
    pub fn remove(&mut self, id: CgroupId) {
        let Some(wd) = self.by_id.remove(&id) else {
            return;
        };
        if let Some(watch) = self.drop_watch(wd)
            && let Some(key) = name_key(&watch.cgroup)
            && self.by_name.get(&key) == Some(&id)
        {
            self.by_name.remove(&key);
        }
    }

    /// How many cgroups are watched.
    #[must_use]
    pub fn len(&self) -> usize {
        self.watches.len()
    }

    /// Whether nothing is watched.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.watches.is_empty()
    }

    /// The changes since the last call, oldest first; never waits. The descriptor
    /// ([`AsFd`]) is readable when there is something.
    ///
    /// # Errors
    /// When inotify cannot be read.
    pub fn drain(&mut self) -> Result<Vec<WatchEvent>> {
        let mut events = Vec::new();
        let mut buffer = [MaybeUninit::uninit(); 16 << 10];
        // Bounded, so that a tenant that creates and removes cgroups in a loop cannot keep the caller here.
        for _ in 0..MAX_READS {
            match self.read_once(&mut buffer, &mut events) {
                Ok(()) | Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                Err(errno) => {
                    return Err(Error::Io {
                        operation: Operation::Watch,
                        path: PathBuf::from("inotify"),
                        errno,
                    });
                }
            }
        }
        Ok(events)
    }

    /// One read's worth of events.
    fn read_once(
        &mut self,
        buffer: &mut [MaybeUninit<u8>],
        events: &mut Vec<WatchEvent>,
    ) -> std::result::Result<(), Errno> {
        let mut raw = Vec::new();
        let mut reader = inotify::Reader::new(&self.inotify, buffer);
        loop {
            let event = reader.next()?;
            let name = event.file_name().map(|name| name.to_bytes().to_vec());
            raw.push((event.wd(), event.events(), name.map(OsString::from_vec)));
            if reader.is_buffer_empty() {
                break;
            }
        }
        for (wd, flags, name) in raw {
            events.extend(self.translate(wd, flags, name));
        }
        Ok(())
    }

    fn translate(
        &mut self,
        wd: i32,
        flags: inotify::ReadFlags,
        name: Option<OsString>,
    ) -> Option<WatchEvent> {
        use inotify::ReadFlags;
        if flags.contains(ReadFlags::QUEUE_OVERFLOW) {
            return Some(WatchEvent::Overflow);
        }
        // Events of a watch that was dropped meanwhile are of no use.
        let id = self.watches.get(&wd)?.cgroup.id();
        if flags.contains(ReadFlags::IGNORED) {
            // The kernel dropped the watch with its directory. Its name is kept for the parent's event, which comes
            // later.
            let watch = self.watches.remove(&wd)?;
            self.by_id.remove(&id);
            if let Some(key) = name_key(&watch.cgroup)
                && !self.by_id.contains_key(&key.0)
            {
                self.by_name.remove(&key);
            }
            return None;
        }
        let name = name?;
        let is_directory = flags.contains(ReadFlags::ISDIR);
        if is_directory && flags.contains(ReadFlags::CREATE) {
            Some(WatchEvent::CgroupCreated { parent: id, name })
        } else if is_directory && flags.contains(ReadFlags::DELETE) {
            Some(self.removed(id, name))
        } else if flags.contains(ReadFlags::MODIFY) && name == OsStr::new("cgroup.events") {
            Some(WatchEvent::PopulatedChanged { id })
        } else if flags.contains(ReadFlags::MODIFY) {
            Some(WatchEvent::FileWritten { id, name })
        } else {
            None
        }
    }

    /// The event of a child's removal. If the cgroup that has the name is alive, a former one was removed.
    fn removed(&mut self, parent: CgroupId, name: OsString) -> WatchEvent {
        let key = (parent, name);
        let watch = |id: CgroupId| self.watches.get(self.by_id.get(&id)?);
        let id = self
            .by_name
            .get(&key)
            .copied()
            .filter(|id| watch(*id).is_none_or(|watch| !watch.cgroup.is_alive()));
        if let Some(id) = id {
            self.remove(id);
            self.by_name.remove(&key);
        }
        let (parent, name) = key;
        WatchEvent::CgroupRemoved { parent, name, id }
    }

    fn drop_watch(&mut self, wd: i32) -> Option<Watch> {
        // EINVAL when the kernel dropped it first.
        let _gone_already = inotify::remove_watch(&self.inotify, wd);
        self.watches.remove(&wd)
    }
}

/// How many reads one [`TreeWatcher::drain`] makes at most (of 16 KiB, at least 60 events each).
const MAX_READS: usize = 64;

/// Whether an error of [`TreeWatcher::add`] means that the limit of watches or descriptors is reached, or that there is no
/// memory.
#[must_use]
pub fn is_watch_limit(error: &Error) -> bool {
    error.is_exhausted() || error.errno() == Some(Errno::NOSPC)
}

/// The key by which its parent's events name it.
fn name_key(cgroup: &Cgroup) -> Option<(CgroupId, OsString)> {
    Some((cgroup.parent_id()?, cgroup.name()?.to_owned()))
}

/// Readable when [`TreeWatcher::drain`] has something to return.
impl AsFd for TreeWatcher {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inotify.as_fd()
    }
}
