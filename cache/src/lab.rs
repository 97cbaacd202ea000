//! Parts of the cache for the lab's benches and experiments: a modelled clock and device, and reads for one container.

pub use crate::block::{BLOCK_BYTES, len, touching};
pub use crate::port::{Port, PutTarget};
pub use crate::store::{BlocksRead, Device, FileDevice, Foreign, Overdue};
pub use crate::testing::{NullDisk, Random, Zipf, front_end};

use crate::disk::CachedDisk;
use crate::ids::PoolId;
use std::io;

/// The cache's clock on this thread.
pub mod clock {
    pub use crate::clock::{pass, reset, set};
}

/// The places of a read's blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// Blocks that the cache had in memory.
    pub memory: u64,
    /// Blocks that it had on the SSD.
    pub ssd: u64,
}

impl CachedDisk {
    /// Reads whole blocks for a container. Returns where they were.
    ///
    /// # Errors
    /// What the backing store reports; [`io::ErrorKind::InvalidInput`] when the pool does not exist or belongs to another VM.
    pub fn read_found(&self, pool: PoolId, buf: &mut [u8], off: u64) -> io::Result<Found> {
        let Some(pool) = self.pool_of(pool) else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        let Some(remainder) = self.look_up(&pool, buf, off) else {
            return Ok(Found {
                memory: len(buf) / BLOCK_BYTES,
                ssd: 0,
            });
        };
        let found = Found {
            memory: u64::try_from(remainder.copied).unwrap_or(0),
            ssd: remainder.on_ssd(),
        };
        self.finish(&pool, remainder, buf, off)?;
        Ok(found)
    }
}
