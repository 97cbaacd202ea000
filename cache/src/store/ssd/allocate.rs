//! Extents that are free, and how many there may be.

use super::extent::{EXTENT_SLOTS, FREE, extents};
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
        free.stack.len() + self.capacity.load(Ordering::SeqCst) - free.fresh
    }

    /// Is an extent free?
    pub(crate) fn has_free(&self) -> bool {
        let free = self.free.lock();
        free.stack.len() > 0 || free.fresh < self.capacity.load(Ordering::SeqCst)
    }

    pub(super) fn take_extent(&self) -> Option<u32> {
        let mut free = self.free.lock();
        if let Some(extent) = free.stack.pop(self) {
            return Some(extent);
        }
        let next = free.fresh;
        (next < self.capacity.load(Ordering::SeqCst)).then(|| {
            free.fresh += 1;
            next
        })
    }

    pub(super) fn return_extent(&self, extent: u32) {
        let mut free = self.free.lock();
        if extent < self.capacity.load(Ordering::SeqCst) {
            free.stack.push(self, extent);
        }
    }

    /// Changes the capacity. Extents beyond it are handed out no more; returns those that were in use.
    pub(crate) fn set_capacity(&self, bytes: u64) -> io::Result<std::ops::Range<u32>> {
        let new = extents(bytes);
        self.device.grow(bytes)?;
        let mut free = self.free.lock();
        let old = self.capacity.swap(new, Ordering::SeqCst);
        let used = free.fresh;
        if new >= old {
            return Ok(0..0);
        }
        let mut all = std::mem::take(&mut free.stack);
        while let Some(extent) = all.pop(self) {
            if extent < new {
                free.stack.push(self, extent);
            }
        }
        free.fresh = used.min(new);
        Ok(new..used.max(new))
    }

    /// The owner of an extent that is in use.
    pub(crate) fn pool_in_use(&self, extent: u32) -> Option<u32> {
        let e = self.extent(extent);
        (e.state.load(Ordering::SeqCst) != FREE).then(|| e.pool.load(Ordering::SeqCst))
    }

    /// Tells the device that an extent's content is not needed. A hint: what it says does not matter.
    pub(super) fn discard(&self, extent: u32) {
        let len = u64::from(EXTENT_SLOTS) * BLOCK_BYTES;
        if let Err(error) = self.device.discard(u64::from(extent) * len, len) {
            tracing::debug!(%error, extent, "the SSD store's device takes no discards");
        }
    }
}
