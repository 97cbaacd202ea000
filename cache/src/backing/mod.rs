//! Backing images: raw files and block devices.

mod format;
pub(crate) mod lock;
mod open;
mod raw;
mod system_calls;

pub use justitia_link::AlignedBuf;
pub use lock::LockError;
pub use open::{OpenError, OpenOptions};
pub use raw::RawDisk;
