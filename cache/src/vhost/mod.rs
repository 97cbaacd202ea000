//! The vhost-user-blk back end: serves a disk to a VM through shared memory.
//!
//! A disk has its own socket, which serves one front end (QEMU) at a time. The session's thread answers its messages. Each
//! queue has its own thread and io_uring. The thread takes requests from the ring in the guest's memory and answers cache hits
//! at once. It passes the rest to the same [`IoQueue`](crate::frontend) that NBD uses. Guest writes are copied before they are
//! checked, and no guest memory is registered with the kernel.
//!
//! A region that outlives this process (`VHOST_USER_PROTOCOL_F_INFLIGHT_SHMFD`) records a request from when it is taken until
//! it is answered. The next server executes the recorded requests, once.
//!
//! Guests and front ends may be hostile. An invalid chain or index stops its queue until the front end restarts it. A front end
//! that truncates its memory is disconnected. A queue holds at most 8 MiB of requests and one more; a disk has at most 64
//! queues. Mappings and open files of front ends have a budget for each, for each VM and for all.
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

/// Parses a region of requests in flight, for the fuzzer.
#[doc(hidden)]
pub use inflight::recover_from;
