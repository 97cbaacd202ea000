//! S3-FIFO (Yang et al., SOSP '23): the probationary list is the small queue, the protected one the main queue.

use super::ghost_list::RemovalReason;
use super::{EvictionPolicy, Lists, PROBATIONARY, PROTECTED};

/// The small queue's part of the pool, percent.
const SMALL_PERCENT: u64 = 10;

pub(super) struct S3Fifo;

impl EvictionPolicy for S3Fifo {
    fn has_ghost_list(&self) -> bool {
        true
    }

    /// The small queue, unless it is below its part.
    fn list(&self, of: &Lists<'_>) -> usize {
        let [small, main] = of.len.map(u64::from);
        if small * 100 < (small + main) * SMALL_PERCENT {
            PROTECTED
        } else {
            PROBATIONARY
        }
    }

    fn spared(&self, list: usize, uses: u8) -> Option<u8> {
        match list {
            PROBATIONARY => (uses > 0).then_some(0),
            _ => uses.checked_sub(1),
        }
    }

    fn promotes(&self) -> bool {
        true
    }

    fn remembers_evicted(&self, list: usize) -> Option<RemovalReason> {
        (list == PROBATIONARY).then_some(RemovalReason::Probationary)
    }
}
