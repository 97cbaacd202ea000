//! What each tenant's applications really get: eBPF probes in `kernel/src/bpf/` and their typed
//! readers.
//!
//! The kernel's own counters show block I/O; what applications get through the page cache is
//! invisible in them, and it is what weights are about. [`IoProbes::attach`] attaches a probe wherever
//! data moves between a regular file and an application, each path once; [`IoProbes::sample`] reads
//! what was counted, per cgroup. Nothing is streamed per call or per page.
//!
//! A probe that this kernel has no place for is a [`ProbeStatus`] with its reason, never an error:
//! without eyes, or with few, everything else goes on.
//!
//! Refaults are not counted here: the kernel counts them itself, as `workingset_refault_file` in
//! [`MemoryStat`](crate::memory::MemoryStat).

mod counters;
mod curves;
mod distinct;
mod error;
mod histogram;
mod limits;
mod load;
mod on_demand;
mod open;
mod probe;
mod programs;
mod region;
mod reports;
mod rows;
mod slots;

pub use counters::{Counters, Io, Sample, Traffic};
pub use curves::Reuse;
pub use error::ProbeError;
pub use histogram::{Histogram, Latencies};
pub use limits::Limits;
pub use open::IoProbes;
pub use probe::{Probe, ProbeStatus};
pub use reports::{Contention, SharedInode, SharedUse};
