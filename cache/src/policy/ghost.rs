//! Remembers blocks that are gone, by fingerprint, 4 bytes each.
//!
//! Buckets of eight fingerprints, each a queue: a new one pushes the oldest of its bucket out. As hashes
//! spread evenly, the whole forgets in about the order in which it learned.

use crate::index::scale;

const WAYS: usize = 8;

/// The memory of what was here.
#[derive(Default)]
pub(crate) struct Ghost {
    /// 0 is nothing.
    buckets: Vec<[u32; WAYS]>,
}

/// The part of a hash that is remembered; its high bits say the bucket, so that a growing ghost can spread
/// what it knows.
fn fingerprint(hash: u64) -> u32 {
    u32::try_from(hash >> 32).unwrap_or(0).max(1)
}

impl Ghost {
    /// How many it can remember.
    pub(crate) fn capacity(&self) -> usize {
        self.buckets.len() * WAYS
    }

    /// Heap bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.buckets.capacity() * size_of::<[u32; WAYS]>()
    }

    fn bucket(&self, fingerprint: u32) -> usize {
        scale(fingerprint.into(), self.buckets.len())
    }

    /// Makes room for `count`; what is known stays known as far as it fits.
    pub(crate) fn resize(&mut self, count: usize) {
        let old = std::mem::take(&mut self.buckets);
        let mut buckets = Vec::new();
        buckets.reserve_exact(count.div_ceil(WAYS));
        buckets.resize(count.div_ceil(WAYS), [0; WAYS]);
        self.buckets = buckets;
        for bucket in old {
            for fingerprint in bucket.into_iter().rev().filter(|f| *f != 0) {
                self.learn(fingerprint);
            }
        }
    }

    fn learn(&mut self, fingerprint: u32) {
        if self.buckets.is_empty() {
            return;
        }
        let at = self.bucket(fingerprint);
        let bucket = &mut self.buckets[at];
        // Known already: it becomes the newest. Otherwise the oldest goes.
        let last = bucket
            .iter()
            .position(|f| *f == fingerprint)
            .unwrap_or(WAYS - 1);
        bucket[..=last].rotate_right(1);
        bucket[0] = fingerprint;
    }

    pub(crate) fn remember(&mut self, hash: u64) {
        self.learn(fingerprint(hash));
    }

    /// Was it here? It is forgotten, as it is here again.
    pub(crate) fn recall(&mut self, hash: u64) -> bool {
        if self.buckets.is_empty() {
            return false;
        }
        let fingerprint = fingerprint(hash);
        let at = self.bucket(fingerprint);
        let bucket = &mut self.buckets[at];
        let Some(found) = bucket.iter().position(|f| *f == fingerprint) else {
            return false;
        };
        bucket[found..].rotate_left(1);
        bucket[WAYS - 1] = 0;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block::Key;

    fn hash(n: u64) -> u64 {
        Key::from_raw(n).hash(1)
    }

    #[test]
    fn recalls_once_and_survives_growth() {
        let mut ghost = Ghost::default();
        assert!(!ghost.recall(hash(1)), "an empty ghost knows nothing");
        ghost.resize(64);
        (0..20).for_each(|n| ghost.remember(hash(n)));
        ghost.resize(1024);
        assert_eq!(ghost.capacity(), 1024);
        assert!((0..20).all(|n| ghost.recall(hash(n))));
        assert!((0..20).all(|n| !ghost.recall(hash(n))));
    }

    #[test]
    fn the_oldest_go_first() {
        let mut ghost = Ghost::default();
        ghost.resize(8192);
        (0..16384).for_each(|n| ghost.remember(hash(n)));
        let old = (0..4096).filter(|n| ghost.recall(hash(*n))).count();
        let new = (12288..16384).filter(|n| ghost.recall(hash(*n))).count();
        assert!(old < 410, "{old} of the 4096 oldest");
        assert!(new > 3686, "{new} of the 4096 newest");
    }
}
