//! What front ends ask for that cannot be.

use super::device_limits::{MAX_MEMORY_SLOTS, MAX_QUEUE_SIZE, MAX_QUEUES};
use std::io;
use vhost::vhost_user::Error;

/// A parameter of a message that cannot be served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Invalid {
    /// There is no such ring.
    #[error("expected one of the rings 0 to {}, found {index}", MAX_QUEUES - 1)]
    Ring { index: u32 },
    /// No ring has this size.
    #[error(
        "ring {index}: expected a size that is a power of two and at most {MAX_QUEUE_SIZE}, found {size}"
    )]
    RingSize { index: u32, size: u32 },
    /// No index of a ring.
    #[error("ring {index}: expected an index of its available ring of at most 65535, found {base}")]
    Base { index: u32, base: u32 },
    /// A part of a ring outside of the memory that the front end has told.
    #[error("ring {index}: expected its {part} in a region of memory, found it at {address:#x}")]
    Address {
        index: u32,
        part: &'static str,
        address: u64,
    },
    /// A ring that would have to be polled.
    #[error("ring {index}: expected an eventfd that says that there are requests, found none")]
    NoKick { index: u8 },
    /// The region of requests in flight was made for others.
    #[error(
        "ring {index}: expected an in-flight region with room for it, found none for a ring of {size}"
    )]
    Inflight { index: u32, size: u16 },
    /// More regions than there can be.
    #[error("expected at most {MAX_MEMORY_SLOTS} regions of memory, found {found}")]
    Regions { found: usize },
    /// Only the write cache is the driver's to choose.
    #[error(
        "expected one byte at {} of the configuration, the write cache, found {bytes} at {offset}",
        super::config_space::WRITE_BACK
    )]
    Configuration { offset: u32, bytes: usize },
}

impl From<Invalid> for Error {
    fn from(why: Invalid) -> Self {
        Self::ReqHandlerError(io::Error::new(io::ErrorKind::InvalidInput, why))
    }
}
