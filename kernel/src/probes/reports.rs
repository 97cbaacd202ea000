//! What the probes on demand report.

use serde::{Deserialize, Serialize};

use crate::cgroup::CgroupId;

/// A file whose cached pages are charged to one cgroup and used by another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SharedInode {
    /// The filesystem's device, as the kernel numbers it internally (major << 20 | minor).
    pub device: u32,
    /// The inode's number there.
    pub inode: u64,
    /// The inode's generation: another file that gets the same number later has another.
    pub generation: u32,
    /// Whether the file was mapped when it was last used.
    pub mapped: bool,
    /// Bytes of it in the page cache when it was last used.
    pub cached: u64,
    /// Its uses, most bytes first.
    pub uses: Vec<SharedUse>,
}

/// One cgroup's use of pages that are charged to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SharedUse {
    /// The cgroup whose tasks read the pages.
    pub user: CgroupId,
    /// The cgroup to which they are charged.
    pub charged: CgroupId,
    /// Bytes of the different pages that were read, each counted once: an estimate with a standard deviation of at most
    /// 2.3 % of what is cached.
    pub bytes: u64,
}

/// Lock contention on the path to a page, for the tasks of one cgroup.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LockContention {
    /// How often a task waited for a lock.
    pub count: u64,
    /// Nanoseconds of waiting.
    pub wait_ns: u64,
}
