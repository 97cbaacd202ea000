//! Backing images: raw files and block devices.

mod open;
mod raw;

pub use justitia_link::AlignedBuf;
pub(crate) use open::take_locks;
pub use open::{LockError, OpenError, OpenOptions};
pub use raw::RawImage;
