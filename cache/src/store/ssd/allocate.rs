//! Extents that are free, and how many there may be.

use super::extent::{EXTENT_SLOTS, FREE, OPEN, extents};
use super::store::SsdStore;
use crate::block::BLOCK_BYTES;
use std::io;
use std::sync::atomic::Ordering;

impl SsdStore {
    /// Is nothing on its way to the device?
    #[cfg(test)]
    pub(crate) fn settled(&self) -> bool {
        (0..self.free.lock().fresh).all(|e| self.extent(e).pending.load(Ordering::SeqCst) == 0)
    }

    /// Blocks of an extent.
    #[cfg(test)]
    pub(crate) fn live(&self, extent: u32) -> u32 {
        self.extent(extent).live.load(Ordering::SeqCst).count_ones()
    }

    #[cfg(test)]
    pub(crate) fn free_extents(&self) -> u32 {
        let free = self.free.lock();
        free.stack.len()
            + self
                .capacity
                .load(Ordering::SeqCst)
                .saturating_sub(free.fresh)
    }

    /// Is an extent free?
    pub(crate) fn has_free(&self) -> bool {
        let free = self.free.lock();
        free.stack.len() > 0 || free.fresh < self.capacity.load(Ordering::SeqCst)
    }

    /// A free extent, which is the pool's and open before the lock is released: a store that shrinks meanwhile either takes
    /// it from the free ones or sees that it is in use.
    pub(super) fn take_extent(&self, pool: u32) -> Option<u32> {
        let mut free = self.free.lock();
        let extent = match free.stack.pop(self) {
            Some(extent) => extent,
            None if free.fresh < self.capacity.load(Ordering::SeqCst) => {
                free.fresh += 1;
                free.fresh - 1
            }
            None => return None,
        };
        let e = self.extent(extent);
        e.pool.store(pool, Ordering::SeqCst);
        e.state.store(OPEN, Ordering::SeqCst);
        Some(extent)
    }

    pub(super) fn return_extent(&self, extent: u32) {
        let mut free = self.free.lock();
        if extent < self.capacity.load(Ordering::SeqCst) {
            free.stack.push(self, extent);
        } else {
            free.beyond.push(extent);
        }
    }

    /// An extent whose content is to be discarded before it is anybody's again.
    pub(super) fn retire(&self, extent: u32) {
        self.retired.lock().push(extent);
    }

    /// Tells the device that the content of the retired extents is not needed, of neighbours at once, and frees them. Hold no
    /// lock: it may take long. A hint: what the device says does not matter.
    pub(crate) fn discard_retired(&self) {
        let mut retired = std::mem::take(&mut *self.retired.lock());
        retired.sort_unstable();
        let len = u64::from(EXTENT_SLOTS) * BLOCK_BYTES;
        for run in retired.chunk_by(|one, next| one + 1 == *next) {
            let (first, count) = (run.first().copied().unwrap_or(0), run.len());
            let bytes = u64::try_from(count).unwrap_or(0) * len;
            if let Err(error) = self.device.discard(u64::from(first) * len, bytes) {
                tracing::debug!(%error, first, count, "the SSD store's device takes no discards");
            }
            run.iter().for_each(|extent| self.return_extent(*extent));
        }
    }

    /// Changes the capacity. Extents beyond it are handed out no more; returns those that were in use.
    pub(crate) fn set_capacity(&self, bytes: u64) -> io::Result<std::ops::Range<u32>> {
        let new = extents(self.device.grow(bytes)?);
        let mut free = self.free.lock();
        let old = self.capacity.swap(new, Ordering::SeqCst);
        let mut all = std::mem::take(&mut free.stack);
        let mut known = std::mem::take(&mut free.beyond);
        known.extend(std::iter::from_fn(|| all.pop(self)));
        for extent in known {
            if extent < new {
                free.stack.push(self, extent);
            } else {
                free.beyond.push(extent);
            }
        }
        Ok(if new < old {
            new..free.fresh.max(new)
        } else {
            0..0
        })
    }

    /// The owner of an extent that is in use.
    pub(crate) fn pool_in_use(&self, extent: u32) -> Option<u32> {
        let e = self.extent(extent);
        (e.state.load(Ordering::SeqCst) != FREE).then(|| e.pool.load(Ordering::SeqCst))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::fault::FaultSsd;

    #[test]
    fn a_store_that_shrinks_sees_an_extent_that_was_just_taken() {
        let bytes = 4 * u64::from(EXTENT_SLOTS) * BLOCK_BYTES;
        let device = FaultSsd::new();
        let ssd = SsdStore::new(Box::new(device), bytes, 1);
        let extent = ssd.take_extent(7).unwrap();
        let beyond = ssd.set_capacity(0).unwrap();
        assert!(beyond.contains(&extent));
        assert_eq!(ssd.pool_in_use(extent), Some(7));
    }
}
