//! A disk that is read and written through the cache.

mod cached;
mod read;

pub use cached::CachedDisk;

pub(crate) use read::{MissFill, MissRemainder};
