//! The guest's side of the port, and of the host's questions about memory.
//!
//! A virtual machine's page cache evicts clean pages. The kernel's probe copies them with their places on the disk
//! ([`justitia_kernel::probes::EvictionProbe`]); this crate puts them over the port into the host's hypervisor cache, in a
//! pool for each container, and offers less where that is worth nothing. `docs/design/guest-agent.md` says how.
//!
//! `offers` decides how much is offered, `pools` which pools there are; each measures, plans, purely, and acts. `port`
//! speaks with the host, `serve` is the loop while there is a port.
//!
//! `memory` answers what the host asks about this machine's memory, and gives cache back that is not worth having.

#![forbid(unsafe_code)]
#![deny(clippy::indexing_slicing)]

mod batch;
mod disks;
mod memory;
mod offers;
mod pools;
mod port;
mod run;
mod serve;

pub use run::{GuestError, run};
pub use serve::{Options, Status};
