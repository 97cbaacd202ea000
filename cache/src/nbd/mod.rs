//! The NBD server: fixed newstyle negotiation, simple, structured and extended replies, TLS.
//!
//! A connection has one thread, which alone touches its socket: it takes whatever has arrived, answers what
//! the cache holds from the cache straight into the reply buffer, and sends all replies in one go. Misses,
//! writes and flushes go to the image through the connection's own io_uring. What takes more than one
//! transfer, and everything where io_uring is refused, goes to a pool of workers, shared by all connections and
//! served in proportion to the weights of the VMs, of which one VM may take a quarter. Blocks on the SSD store are read
//! by a second pool, which waits for no image. Replies may overtake each other. So neither a miss, nor a slow client,
//! nor disks that hang hold up hits.
//!
//! Bounds: a connection holds at most [`Limits::in_flight_bytes`] of payload plus two requests' (32 MiB
//! each), and 1 MiB of buffers; a VM has at most [`Limits::vm_connections`] of them, a listener
//! [`Limits::connections`]. Clients that take no reply within [`Limits::send`] are cut off.

mod catalogue;
mod connection;
mod encode;
mod export;
mod flight;
mod handshake;
mod input;
mod negotiate;
mod outbox;
mod parse;
mod proto;
mod request;
mod serve;
mod server;
mod tenant;
mod tls;
mod transport;
mod workers;

#[cfg(test)]
mod test;

pub use export::{Allocation, Export, ExportStats, Served};
pub(crate) use server::unix_listener;
pub use server::{Limits, ListenError, Server};
pub use tenant::Tenant;
pub use tls::{TlsError, TlsFiles};

/// The parsers, for the fuzzer.
#[doc(hidden)]
pub mod fuzz {
    pub use super::encode::Style;
    pub use super::handshake::{Agreed, Catalogue, Handshake, Next, Offer, Tls};
    pub use super::request::{Command, Parsed, Request, parse};
}
