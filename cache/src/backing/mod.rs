//! Backing images: raw files and block devices.

mod format;
pub(crate) mod lock;
mod open;
mod raw;

pub use justitia_link::AlignedBuf;
pub use lock::LockError;
pub use open::{OpenError, OpenOptions};
pub use raw::RawDisk;
