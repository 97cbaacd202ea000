//! The vhost-user-blk back end: a disk for a VM through memory that both sides share.
//!
//! A disk has a socket of its own, which serves one front end (QEMU) at a time. The session's thread answers its
//! messages; each queue has a thread and an io_uring of its own, which takes requests from the ring in the guest's
//! memory, answers hits from the cache at once, and hands the rest to the same [`IoQueue`](crate::frontend) that NBD
//! uses. What a guest writes is copied before it is looked at, and no guest memory is registered with the kernel.
//!
//! A request is noted in a region that outlives this process (`VHOST_USER_PROTOCOL_F_INFLIGHT_SHMFD`) from when it is
//! taken until it is answered. The next server executes what is noted there, once.
//!
//! Guests, and front ends, are hostile. A chain or an index that no driver makes stops its queue, until the front end
//! starts it again. Memory that is taken away (a file that is truncated) costs the front end its connection. A queue holds
//! at most 8 MiB of requests and one more; a disk has at most 64 queues; what front ends map and open has a budget, for
//! each, for each VM and for all.
//!
//! Sources: virtio 1.2, 5.2 (block device) and 2.7 (split virtqueues); QEMU's `docs/interop/vhost-user.rst`.

#![deny(clippy::indexing_slicing)]

mod chain;
mod config;
mod device;
mod hangup;
mod inflight;
mod leave;
mod limits;
mod memory;
mod messages;
mod queue;
mod request;
mod server;
mod sigbus;
mod vring;
mod vring_events;

#[cfg(any(test, feature = "lab"))]
#[doc(hidden)]
pub mod fuzz;

#[cfg(test)]
mod test;

#[cfg(any(test, feature = "lab"))]
pub(crate) use memory::{GuestMemory, GuestRegion, map, sealed};
pub use server::VhostServer;

/// What a front end may hand over as the region of requests in flight, for the fuzzer.
#[doc(hidden)]
pub use inflight::recover_from;
