//! Backing images: raw files and block devices.

mod buffer;
pub(crate) mod lock;
mod raw;

pub use buffer::AlignedBuf;
pub use lock::LockError;
pub use raw::{OpenError, OpenOptions, RawDisk};
