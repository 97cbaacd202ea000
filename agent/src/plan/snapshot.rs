//! What was observed, at one moment.

use std::time::Duration;

use justitia_api::Evidence;
use justitia_kernel::cgroup::CgroupId;
use justitia_share::Weight;

/// Which tenant this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Key {
    /// A cgroup.
    Cgroup(CgroupId),
    /// Everything outside any managed cgroup: the root cgroup's own processes, and excluded cgroups.
    Unmanaged,
}

/// The machine's memory. Amounts in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// All of it (`MemTotal`).
    pub total: u64,
    /// Free now.
    pub free: u64,
    /// About to be free: reclaim that is under way.
    pub reclaim_in_flight: u64,
    /// The sum of the zones' low watermarks: below it the kernel's own reclaim is woken.
    pub low_watermark: u64,
    /// How fast the free memory is being used up, bytes per second, what reclaim refilled included.
    pub consumption_rate: u64,
}

/// A node of the weight tree as observed. Amounts in bytes.
#[derive(Clone, Debug, PartialEq)]
pub struct Tenant {
    /// Who.
    pub key: Key,
    /// The parent's position in [`Snapshot::tenants`]; `None` right below the root.
    pub parent: Option<usize>,
    /// Its weight among its siblings.
    pub weight: Weight,
    /// File pages that it keeps whatever happens (its operator's `memory.low`, or the configuration).
    pub floor: u64,
    /// File pages that it asks to keep, of what its parent gets: the word of somebody to whom the parent is
    /// delegated, and so nothing to do with how much that is.
    pub requested: u64,
    /// File pages on its LRU lists, its descendants' included.
    pub file: u64,
    /// Of `file`, what is charged to none of its living children: all of a leaf's. Of an inner node, what its own
    /// processes have read before it had children, and what children have read that were removed since.
    pub own: u64,
    /// Of `own`, what no living process stands for: it has no demand. All that an inner node has of its own.
    pub orphaned: u64,
    /// Of `own`, what this kernel has no way to reclaim from alone.
    pub untargetable: u64,
    /// Charged memory that is not file pages on LRU lists (anonymous, kernel, shmem).
    pub other: u64,
    /// File pages that cannot be reclaimed now: dirty or under writeback.
    pub unreclaimable: u64,
    /// Whether it has no managed children.
    pub leaf: bool,
    /// Whether any process lives in it or below.
    pub populated: bool,
    /// Whether its cache has been growing, or would have, had nothing been reclaimed from it.
    pub growing: bool,
    /// For how long it has not been using its cache.
    pub idle_for: Duration,
    /// File pages that processes have mapped: the probes do not see how these are used.
    pub mapped: u64,
    /// The cache that it can use, as far as that is known.
    pub working_set: WorkingSet,
    /// Why nothing may be reclaimed from it now, if so.
    pub exempt: Option<ReclaimExemption>,
}

/// What is known of a tenant's use of its cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorkingSet {
    /// The cache that it can use, bytes.
    pub useful: u64,
    /// For how long it has been watched without using more: the longer, the surer.
    pub watched: Duration,
    /// How that is known.
    pub by: Evidence,
}

/// Why nothing is reclaimed from a tenant.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ReclaimExemption {
    /// Its tasks are all stalled on memory for this part of the time (PSI `full avg10`, percent).
    Thrashing(f64),
    /// This kernel cannot reclaim from it without touching anonymous memory.
    Anonymous,
    /// This kernel has no way to reclaim from it alone.
    NoMeans,
    /// Below it lives an excluded cgroup, or one that is not told apart: reclaim would take from that, too.
    Excluded,
    /// It has more children than can be looked at each time, to see that it costs them nothing.
    Crowded,
    /// Earlier attempts freed nothing; it rests until the next try.
    Fruitless,
}

impl std::fmt::Display for ReclaimExemption {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Thrashing(full) => {
                write!(f, "thrashing (memory pressure full avg10 {full:.0} %)")
            }
            Self::Anonymous => f.write_str(
                "this kernel's memory.reclaim has no swappiness= and the tenant has swappable \
                 anonymous memory",
            ),
            Self::NoMeans => f.write_str("this kernel cannot reclaim from it alone"),
            Self::Excluded => {
                f.write_str("an excluded cgroup below it would be reclaimed from, too")
            }
            Self::Crowded => {
                f.write_str("it has too many cgroups to see what reclaim would cost them")
            }
            Self::Fruitless => f.write_str("recent attempts freed nothing"),
        }
    }
}

/// The tree and the memory, at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Snapshot {
    /// The machine's memory.
    pub memory: Memory,
    /// The tenants, parents first.
    pub tenants: Vec<Tenant>,
}
