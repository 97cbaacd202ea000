//! Slots that were removed from the index, on their way back to their pools.

use super::pool::PoolHandle;
use super::state::Cache;
use crate::index::{Location, SlotRef};
use crate::store::SsdStore;
use std::sync::Arc;

/// A slot that was removed from the index. It must be freed.
pub(super) enum DetachedSlot {
    Memory(u32),
    Ssd(Arc<SsdStore>, u32),
}

impl DetachedSlot {
    pub(super) const fn location(&self) -> Location {
        match self {
            Self::Memory(slot) => Location::memory(*slot),
            Self::Ssd(_, slot) => Location::ssd(*slot),
        }
    }
}

impl Cache {
    /// The slot of an entry that was just removed from the index. Call while its shard is locked: once it is not, the store
    /// may be replaced, and the slot belong to the next one.
    pub(super) fn detach(&self, location: Location) -> Option<DetachedSlot> {
        Some(match location.slot() {
            SlotRef::Memory(slot) => DetachedSlot::Memory(slot),
            SlotRef::Ssd(slot) => DetachedSlot::Ssd(self.stores.ssd.load_full()?, slot),
        })
    }

    /// Returns a slot to its pool, and returns the pool. `taken_by_hit` is the hash of its key when a hit removed it; no policy
    /// may be locked then.
    pub(super) fn free(
        &self,
        detached: DetachedSlot,
        taken_by_hit: Option<u64>,
    ) -> Option<PoolHandle> {
        match detached {
            DetachedSlot::Memory(slot) => {
                let memory = &self.stores.memory;
                let pool = self.pool_at(memory.meta(slot).pool)?;
                let mut policy = pool.policy.lock();
                policy.unlink(memory, slot);
                if let Some(hash) = taken_by_hit {
                    pool.count.taken.add(1);
                    policy.taken_by_hit(hash);
                }
                self.keep_free(&pool, &mut policy, slot);
                drop(policy);
                Some(pool)
            }
            DetachedSlot::Ssd(ssd, slot) => {
                let pool = self.pool_at(ssd.pool_of(slot))?;
                if let Some(hash) = taken_by_hit {
                    pool.count.taken.add(1);
                    self.taken_from_ssd(&ssd, &pool, slot, hash);
                }
                pool.worth.left(1);
                if ssd.free(slot) {
                    self.release_extent(&ssd, &pool, slot);
                }
                Some(pool)
            }
        }
    }
}
