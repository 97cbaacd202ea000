//! Backing images: raw files and block devices.

mod buffer;
pub(crate) mod lock;
mod open;
mod raw;

pub use buffer::AlignedBuf;
pub use lock::LockError;
pub use open::{OpenError, OpenOptions};
pub use raw::RawDisk;
