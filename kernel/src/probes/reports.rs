//! What the probes on demand tell.

use serde::{Deserialize, Serialize};

use crate::cgroup::CgroupId;

/// A file whose cached pages one cgroup pays for and another one uses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SharedInode {
    /// The filesystem's device, as the kernel numbers it internally (major << 20 | minor).
    pub device: u32,
    /// The inode's number there.
    pub inode: u64,
    /// The inode's generation: another file that gets the same number later has another.
    pub generation: u32,
    /// Whether anybody had the file mapped when it was last used.
    pub mapped: bool,
    /// Bytes of it in the page cache when it was last used.
    pub cached: u64,
    /// Who uses it and who pays, most bytes first.
    pub uses: Vec<SharedUse>,
}

/// One tenant's use of pages that another is charged for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SharedUse {
    /// Whose tasks read the pages.
    pub user: CgroupId,
    /// Whom the kernel charges for them.
    pub charged: CgroupId,
    /// Bytes of the different pages that reads came to, each counted once: an estimate, with a standard deviation of at
    /// most 2.3 % of what is cached.
    pub bytes: u64,
}

/// Contended locks on the way to a page, for the tasks of one cgroup.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Contention {
    /// How often a task found a lock taken.
    pub count: u64,
    /// Nanoseconds waited for it.
    pub wait_ns: u64,
}
