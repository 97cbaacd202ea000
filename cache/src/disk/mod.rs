//! A disk that is read and written through the cache.

mod cached;

#[cfg(test)]
mod test;
#[cfg(test)]
mod test_hybrid;
#[cfg(test)]
mod test_put;
#[cfg(test)]
mod test_ssd_admission;

pub use cached::CachedDisk;

pub(crate) use cached::{MissFill, MissRemainder};
