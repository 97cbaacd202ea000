//! The guest's side of the port.
//!
//! A virtual machine's page cache evicts clean pages. The kernel's probe copies them with their places on the disk
//! ([`justitia_kernel::probes::EvictionProbe`]); this crate puts them over the port into the host's hypervisor cache, in a
//! pool for each container, and offers less where that is worth nothing. `docs/design/guest-agent.md` says how.
//!
//! `monitor` sees disks and cgroups, `plan` decides, purely, `enforce` does it, `port` speaks with the host.

#![forbid(unsafe_code)]
#![deny(clippy::indexing_slicing)]

mod batch;
mod enforce;
mod monitor;
mod plan;
mod port;
mod run;
mod serve;
mod status;

pub use run::{GuestError, run};
pub use serve::Options;
pub use status::Status;
