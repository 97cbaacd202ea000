//! SIEVE (Zhang et al., NSDI '24): a hand passes over the blocks, oldest first, and spares those that were hit.

use super::EvictionPolicy;

pub(super) struct Sieve;

impl EvictionPolicy for Sieve {
    fn keeps_hand(&self) -> bool {
        true
    }

    fn spared(&self, _list: usize, uses: u8) -> Option<u8> {
        (uses > 0).then_some(0)
    }
}
