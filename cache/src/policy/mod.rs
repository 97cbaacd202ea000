//! A pool's blocks in memory, and the order in which they are evicted.
//!
//! [`PoolPolicy`] keeps two lists, newest to oldest, a hand that may point at a block, and a ghost list of removed blocks. An
//! [`EvictionPolicy`] decides by them, and has no state of its own: blocks stay in place when a VM's policy changes. A new
//! policy is a file beside these and a line in `policies.rs`.

mod adaptive_split;
mod fifo;
mod ghost;
mod ghost_list;
mod policies;
mod pool_policy;
mod s3_fifo;
mod sieve;

use adaptive_split::AdaptiveSplit;
use ghost_list::RemovalReason;

pub use policies::Policy;
pub(crate) use pool_policy::{Demotion, PoolPolicy};

/// The list of blocks that were put for the first time.
const PROBATIONARY: usize = 0;
/// The list of blocks that were reused.
const PROTECTED: usize = 1;

/// The two lists of a pool, as a policy sees them. Neither is empty.
struct Lists<'a> {
    /// Their lengths.
    len: [u32; 2],
    /// The arrival times of their oldest blocks, by the clock of `split`.
    oldest: &'a dyn Fn() -> [u32; 2],
    split: &'a AdaptiveSplit,
}

/// The decisions of an eviction policy. The defaults are those of a single FIFO list.
trait EvictionPolicy: Sync {
    /// Does it use the second list, for blocks that the ghost list remembers when they are put again?
    fn has_ghost_list(&self) -> bool {
        false
    }

    /// The list to evict from next.
    fn list(&self, _of: &Lists<'_>) -> usize {
        // Blocks that another policy has left in the second list go first.
        PROTECTED
    }

    /// Does the search in the first list continue at its last end, instead of at the oldest block?
    fn keeps_hand(&self) -> bool {
        false
    }

    /// For the next block of a list, which was used `uses` times: the remaining uses if it is spared, `None` if it is evicted.
    fn spared(&self, _list: usize, _uses: u8) -> Option<u8> {
        None
    }

    /// Does a spared block move to the newest end of the second list, instead of staying in its place?
    fn promotes(&self) -> bool {
        false
    }

    /// The reason under which the ghost list remembers a block evicted from a list; `None` if it does not.
    fn remembers_evicted(&self, _list: usize) -> Option<RemovalReason> {
        None
    }

    /// Does the ghost list remember a block that a hit removes (exclusive caches)?
    fn remembers_taken(&self) -> bool {
        false
    }
}
