//! Disks that blocks can be put to.

use crate::block::Block;
use crate::disk::CachedDisk;
use crate::frontend::{Backend, Volume};
use crate::ids::{DiskId, PoolId};
use justitia_link::Verdict;

/// A disk of the port's VM.
pub(crate) trait PutTarget: Send + Sync {
    /// What the cache knows it by; `None` when it is not cached.
    fn id(&self) -> Option<DiskId>;

    /// Takes a block that the guest evicted, if it is right.
    fn offer(&self, pool: PoolId, block: u64, content: &Block) -> Verdict;
}

impl PutTarget for CachedDisk {
    fn id(&self) -> Option<DiskId> {
        self.disk_id()
    }

    fn offer(&self, pool: PoolId, block: u64, content: &Block) -> Verdict {
        Self::offer(self, pool, block, content)
    }
}

impl PutTarget for Volume {
    fn id(&self) -> Option<DiskId> {
        match self.backend() {
            Backend::Cached(disk) => disk.disk_id(),
            Backend::Plain(_) => None,
        }
    }

    fn offer(&self, pool: PoolId, block: u64, content: &Block) -> Verdict {
        match self.backend() {
            Backend::Cached(disk) => disk.offer(pool, block, content),
            Backend::Plain(_) => Verdict::NoDisk,
        }
    }
}
