//! What applications read and write, counted by eBPF probes (`kernel/src/bpf/`), with typed readers.
//!
//! The kernel's own counters show block I/O. What applications read and write through the page cache is not in them, and
//! weights are about that. [`IoProbes::attach`] attaches a probe to each path between a regular file and an application;
//! [`IoProbes::sample`] reads what was counted, per cgroup. Nothing is streamed per call or per page.
//!
//! A probe that this kernel does not support is a [`ProbeStatus`] with its reason, never an error: the agent works without
//! probes, or with few.
//!
//! Refaults are not counted here: the kernel counts them itself, as `workingset_refault_file` in
//! [`MemoryStat`](crate::memory::MemoryStat).

mod attach;
mod counters;
mod curves;
mod evictions;
mod limits;
mod mapped;
mod object;
mod probe;
mod shared_inodes;
mod slots;

pub use attach::IoProbes;
pub use counters::{Counters, Io, ProbeSample, Traffic};
pub use curves::{CURVE_BYTES, ReuseHistogram};
pub use evictions::{
    Device, Eviction, EvictionCounts, EvictionProbe, EvictionReader, OFFER_NOTHING,
};
pub use limits::{Limits, ProbeError};
pub use probe::{Probe, ProbeStatus};
pub use shared_inodes::{SharedInode, SharedUse};
