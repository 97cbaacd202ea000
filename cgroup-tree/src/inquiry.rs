//! When it is asked what a cgroup is.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Instant;

use justitia_kernel::cgroup::CgroupId;

/// When a cgroup is asked for.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Inquiry {
    /// The next time, if any.
    pub due: Option<Instant>,
    /// The last time.
    pub done: Option<Instant>,
    /// How often files were missing.
    pub tries: u8,
    /// Whether it is asked for once more, whatever comes out.
    pub confirm: bool,
}

/// The cgroups that are to be asked for, the earliest first. An entry counts if it is the node's [`Inquiry`].
#[derive(Debug, Default)]
pub(crate) struct Inquiries(pub BinaryHeap<Reverse<(Instant, CgroupId)>>);
