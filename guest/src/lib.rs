//! The guest's side of the port, and of the host's requests about memory.
//!
//! A virtual machine's page cache evicts clean pages. The kernel's probe copies them with their places on the disk
//! ([`justitia_kernel::probes::EvictionProbe`]). This crate puts them over the port into the host's hypervisor cache, in a pool
//! for each container. It offers less where puts are worth nothing. `docs/design/guest-agent.md` says how.
//!
//! `offers` decides how much is offered, and `pools` which pools exist: each measures, plans with pure functions, and acts.
//! `port` speaks with the host, and `serve` is the loop while a port exists.
//!
//! `memory` answers the host's requests about this machine's memory, and gives back cache that is not worth having.

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
