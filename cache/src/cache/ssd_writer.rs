//! Writing segments to the SSD.

use super::state::Cache;
use crate::store::{Segment, SsdStore};
use std::sync::{Arc, Weak};

impl Cache {
    /// Writes one full segment, if there is one.
    pub(crate) fn write_one(&self, ssd: &Arc<SsdStore>) -> bool {
        let segments: Vec<_> = ssd.waiting_full().into_iter().collect();
        self.write_segments(ssd, &segments);
        !segments.is_empty()
    }

    pub(super) fn write_segments(&self, ssd: &Arc<SsdStore>, segments: &[Arc<Segment>]) {
        for (segment, result) in segments.iter().zip(ssd.write(segments)) {
            if let Err(error) = result
                && !ssd.closed()
            {
                self.drop_segment(ssd, segment);
                self.ssd_error(ssd, &error);
            }
            if ssd.written(segment)
                && let Some(pool) = self.pool_at(ssd.pool_of(segment.first))
            {
                self.release_extent(ssd, &pool, segment.first);
            }
        }
    }

    /// Removes the blocks of a segment that could not be written from the index.
    fn drop_segment(&self, ssd: &Arc<SsdStore>, segment: &Segment) {
        for slot in SsdStore::slots(segment) {
            if ssd.unindex(&self.index, slot) {
                ssd.free(slot);
            }
        }
    }
}

/// A writer thread: until the store is closed or the cache is gone.
pub(super) fn run(cache: &Weak<Cache>, ssd: &Arc<SsdStore>) {
    loop {
        let segments = ssd.next_full();
        let Some(cache) = cache.upgrade().filter(|_| !segments.is_empty()) else {
            return;
        };
        cache.write_segments(ssd, &segments);
    }
}
