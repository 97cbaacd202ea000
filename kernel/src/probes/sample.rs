//! What was counted for all cgroups.

use std::collections::HashMap;
use std::time::Duration;

use super::Counters;
use crate::cgroup::CgroupId;

/// Everything counted up to one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sample {
    /// When, on the monotonic clock.
    pub at: Duration,
    /// Every cgroup that did I/O and exists.
    pub cgroups: HashMap<CgroupId, Counters>,
    /// The last counts of cgroups that were removed since the sample before. They are reported once, and never in
    /// `cgroups` again.
    pub removed: Vec<(CgroupId, Counters)>,
    /// What was counted for cgroups without counters of their own: no slot was free ([`map_full`](Self::map_full),
    /// [`map_busy`](Self::map_busy)), or the cgroup was being removed.
    pub overflow: Counters,
    /// How often a cgroup found no free slot, because [`Limits::max_cgroups`](super::Limits::max_cgroups) others had one.
    /// A slot is freed by the second sample after its cgroup's removal, so with fewer samples this happens more often.
    pub map_full: u64,
    /// How often a cgroup got no slot because the kernel's map was busy.
    pub map_busy: u64,
    /// Events that no probe could count: the kernel skipped a probe that was interrupted by itself, refused it memory, or
    /// there were more requests than [`Limits::max_inflight`](super::Limits::max_inflight). While it is zero, every byte is
    /// in this sample.
    pub dropped_events: u64,
}
