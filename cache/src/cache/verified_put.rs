//! Verified puts: blocks that a guest offers are compared with what the host served last.

use super::disk::{DiskHandle, DiskState};
use super::insert::Refused;
use super::pool::PoolHandle;
use super::pool_curve::Access;
use super::state::Cache;
use crate::block::{BLOCK_SIZE, Block};
use crate::error::CacheError;
use crate::ids::VmId;
use crate::residency::Residency;
use crate::write_epochs::FillToken;
use justitia_link::Verdict;
use std::sync::Arc;

impl Cache {
    /// From now on it is known what the VM's guest holds of disks that are added later, so that it can put. `bytes` is the
    /// size of the table: 16 for a block.
    ///
    /// # Errors
    /// When there is no such VM, or the kernel has no random bytes.
    pub fn track_residency(&self, vm: VmId, bytes: u64) -> Result<(), CacheError> {
        let residency = Residency::new(bytes).map_err(|source| CacheError::Residency { source })?;
        self.registry.lock().vm(vm)?.residency = Some(Arc::new(residency));
        Ok(())
    }

    /// Caches a block that the guest offers, if its content is what the guest was served last and still the disk's.
    /// Nobody else may change `content` meanwhile.
    pub(crate) fn offer(
        &self,
        disk: &DiskHandle,
        pool: &PoolHandle,
        block: u64,
        content: &Block,
    ) -> Verdict {
        // Before the hash is looked up: a write that begins later makes the token void, one that began earlier has
        // removed the hash or is still in flight.
        let token = disk.token(block);
        let (Some(residency), Some(key)) = (&disk.residency, disk.key(block)) else {
            return Verdict::Unknown;
        };
        if self.holds(disk, block) {
            return Verdict::Held;
        }
        let Some(known) = residency.lock(key).get() else {
            return Verdict::Unknown;
        };
        if residency.hash(content, disk.id.generation) != known {
            return Verdict::Mismatch;
        }
        {
            // The guest has given it away: it may not be offered again before it is read again.
            let mut entry = residency.lock(key);
            if entry.get() != Some(known) {
                return Verdict::Raced;
            }
            entry.remove();
        }
        match self.insert(disk, pool, block, content, token) {
            Ok(()) => {
                pool.accessed(self.index.hash(key), Access::Put);
                Verdict::Accepted
            }
            Err(Refused::Raced) => Verdict::Raced,
            Err(Refused::NoRoom | Refused::NotWorthIt) => {
                let mut entry = residency.lock(key);
                if disk.allows_hash(&entry, block, token) {
                    entry.set(known);
                }
                Verdict::NoRoom
            }
        }
    }
}

impl DiskState {
    /// The guest was served a block, or has written it: it holds this content. `token` was taken before the content was
    /// read. Anything but a whole block is left out.
    pub(crate) fn served(&self, block: u64, content: &[u8], token: FillToken) {
        let Some(residency) = &self.residency else {
            return;
        };
        let (Ok(content), Some(key)) = (<&[u8; BLOCK_SIZE]>::try_from(content), self.key(block))
        else {
            return;
        };
        let hash = residency.hash(content, self.id.generation);
        let mut entry = residency.lock(key);
        if self.allows_hash(&entry, block, token) {
            entry.set(hash);
        }
    }
}
