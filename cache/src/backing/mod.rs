//! Backing images: raw files and block devices.

mod open;
mod raw;

pub use justitia_guest_protocol::puts::AlignedBuf;
pub(crate) use open::take_locks;
pub use open::{LockError, OpenError, OpenOptions};
pub use raw::RawImage;
