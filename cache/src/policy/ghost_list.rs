//! The ghost list: removed blocks and the reasons; 2 bytes each.
//!
//! Each bucket is a queue of sixteen fingerprints: a new one drops the oldest. As hashes spread evenly, fingerprints are
//! dropped roughly in order of arrival. One block in a thousand is mistaken for another (16 chances at 14 bits), and put in the
//! wrong list.

use crate::index::scale;

const WAYS: usize = 16;

/// Why a block was removed: the low two bits of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RemovalReason {
    /// Evicted from the probationary list.
    Probationary,
    /// Evicted from the protected list.
    Protected,
    /// Removed by a hit, so its next put goes to the protected list.
    TakenByHit,
    /// Removed by a hit on the SSD that came too late for a stay in memory: its next put goes to the SSD.
    Distant,
}

const REASON: u16 = 3;

/// The ghost list.
#[derive(Default)]
pub(crate) struct GhostList {
    /// 0 is an empty entry.
    buckets: Vec<[u16; WAYS]>,
}

/// The stored part of a hash; other bits select the bucket. Never 0.
fn fingerprint(hash: u64) -> u16 {
    (u16::try_from(hash >> 48).unwrap_or(0) & !REASON).max(REASON + 1)
}

impl GhostList {
    /// The number of blocks that it can remember.
    pub(crate) fn capacity(&self) -> usize {
        self.buckets.len() * WAYS
    }

    /// Heap bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.buckets.capacity() * size_of::<[u16; WAYS]>()
    }

    /// Changes the capacity to `count`, and forgets everything: a fingerprint does not say in which bucket it would be.
    pub(crate) fn resize(&mut self, count: usize) {
        let buckets = count / WAYS;
        self.buckets = Vec::new();
        self.buckets.reserve_exact(buckets);
        self.buckets.resize(buckets, [0; WAYS]);
    }

    fn bucket(&mut self, hash: u64) -> Option<&mut [u16; WAYS]> {
        let at = scale(hash, self.buckets.len());
        self.buckets.get_mut(at)
    }

    pub(crate) fn remember(&mut self, hash: u64, reason: RemovalReason) {
        let what = fingerprint(hash);
        let reason = match reason {
            RemovalReason::Probationary => 1,
            RemovalReason::Protected => 2,
            RemovalReason::TakenByHit => 3,
            RemovalReason::Distant => 0,
        };
        if let Some(bucket) = self.bucket(hash) {
            // A known one becomes the newest. Otherwise the oldest is dropped.
            let last = find(bucket, what).unwrap_or(WAYS - 1);
            bucket[..=last].rotate_right(1);
            bucket[0] = what | reason;
        }
    }

    /// The reason of the block's removal, if remembered. Forgets it, since the block is cached again.
    pub(crate) fn recall(&mut self, hash: u64) -> Option<RemovalReason> {
        let what = fingerprint(hash);
        let bucket = self.bucket(hash)?;
        let found = find(bucket, what)?;
        let reason = bucket[found] & REASON;
        bucket[found..].rotate_left(1);
        bucket[WAYS - 1] = 0;
        Some(match reason {
            1 => RemovalReason::Probationary,
            2 => RemovalReason::Protected,
            0 => RemovalReason::Distant,
            _ => RemovalReason::TakenByHit,
        })
    }

    /// Is this the remembered reason? If so, forgets it.
    pub(crate) fn recall_if(&mut self, hash: u64, reason: RemovalReason) -> bool {
        let found = self.recall(hash);
        if let Some(other) = found.filter(|found| *found != reason) {
            self.remember(hash, other);
        }
        found == Some(reason)
    }
}

fn find(bucket: &[u16; WAYS], what: u16) -> Option<usize> {
    bucket
        .iter()
        .position(|f| *f != 0 && (*f ^ what) & !REASON == 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block::Key;

    fn hash(n: u64) -> u64 {
        Key::from_raw(n).hash(1)
    }

    #[test]
    fn a_block_is_recalled_once_and_with_its_reason() {
        let mut ghost = GhostList::default();
        ghost.remember(hash(1), RemovalReason::Probationary);
        assert_eq!(
            ghost.recall(hash(1)),
            None,
            "nothing is remembered without capacity"
        );
        ghost.resize(1024);
        assert_eq!(ghost.capacity(), 1024);
        (0..20).for_each(|n| ghost.remember(hash(n), RemovalReason::Probationary));
        ghost.remember(hash(3), RemovalReason::TakenByHit);
        assert!(!ghost.recall_if(hash(3), RemovalReason::Distant));
        assert_eq!(ghost.recall(hash(3)), Some(RemovalReason::TakenByHit));
        ghost.remember(hash(4), RemovalReason::Distant);
        assert!(ghost.recall_if(hash(4), RemovalReason::Distant));
        assert_eq!(ghost.recall(hash(4)), None);
        ghost.remember(hash(4), RemovalReason::Probationary);
        assert!(
            (0..20).all(|n| n == 3 || ghost.recall(hash(n)) == Some(RemovalReason::Probationary))
        );
        assert!((0..20).all(|n| ghost.recall(hash(n)).is_none()));
    }

    #[test]
    fn the_oldest_are_dropped_first_and_few_are_mistaken() {
        let mut ghost = GhostList::default();
        ghost.resize(8192);
        (0..16384).for_each(|n| ghost.remember(hash(n), RemovalReason::Protected));
        let mut known = |from, to| {
            (from..to)
                .filter(|n| ghost.recall(hash(*n)).is_some())
                .count()
        };
        let unknown = known(100_000, 104_096);
        let old = known(0, 4096);
        let new = known(12288, 16384);
        assert!(unknown < 21, "{unknown} of 4096 that were never put");
        assert!(old < 410, "{old} of the 4096 oldest");
        assert!(new > 3686, "{new} of the 4096 newest");
    }
}
