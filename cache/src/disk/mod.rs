//! A disk that is read and written through the cache.

mod cached;
mod miss;
mod read;

#[cfg(test)]
mod test;
#[cfg(test)]
mod test_hybrid;
#[cfg(test)]
mod test_put;
#[cfg(test)]
mod test_worth;

pub use cached::CachedDisk;

pub(crate) use miss::{MissFill, MissRemainder};
