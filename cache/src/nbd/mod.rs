//! The NBD server: fixed newstyle negotiation, simple, structured and extended replies, TLS.
//!
//! A connection has one thread, which alone uses its socket. It takes the received requests, answers cache hits directly into
//! the reply buffer, and sends all replies in one go. Misses, writes and flushes go to the image through the connection's own
//! io_uring. A pool of worker threads executes requests of more than one transfer, and all of them without io_uring. All
//! connections share the pool by the weights of their VMs, and one VM may take a quarter. A second pool, which waits for no
//! image, reads blocks on the SSD store. Replies may overtake each other. So neither a miss, nor a slow client, nor a disk that
//! hangs delays hits.
//!
//! Limits: a connection holds at most `in_flight_bytes` of payload ([`IoLimits`](crate::frontend::IoLimits)) plus two
//! requests' (32 MiB each), and 1 MiB of buffers; a VM has at most `vm_connections` of them, a listener
//! [`Limits::connections`]. A client that takes no reply within [`Limits::send`] is disconnected.

#![deny(clippy::indexing_slicing)]

mod buffers;
mod clients;
mod connection;
mod export;
mod handshake;
mod negotiate;
mod proto;
mod reply;
mod request;
mod server;
mod transport;

#[cfg(test)]
pub(crate) mod test;

pub use export::{Export, Limits};
pub use server::Server;
pub use transport::{TlsError, TlsFiles};

/// The parsers, for the fuzzer.
#[doc(hidden)]
pub mod fuzz {
    pub use super::handshake::{Agreed, ExportInfo, ExportLookup, Handshake, Next, Tls};
    pub use super::reply::Style;
    pub use super::request::{Command, Parsed, Refusal, Request, parse};
    pub use crate::frontend::Operation;
}
