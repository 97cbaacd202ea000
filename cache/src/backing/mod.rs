//! Backing images: raw files and block devices.

mod buffer;
mod file;
pub(crate) mod lock;
mod raw;

pub use buffer::AlignedBuf;
pub(crate) use file::Beside;
pub use file::DiskFile;
pub use lock::LockError;
pub use raw::{OpenError, OpenOptions, RawDisk};
