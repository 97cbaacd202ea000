//! A guest's page cache: least recently used, by block.

/// No block.
const NIL: u32 = u32::MAX;

/// Not in the cache.
const OUT: u32 = u32::MAX - 1;

/// A list of the blocks that a container has in its memory, the least recently used first to go.
pub(super) struct PageCache {
    capacity: usize,
    len: usize,
    /// By block; the last is the list's head.
    newer: Vec<u32>,
    older: Vec<u32>,
}

impl PageCache {
    /// Room for `capacity` of `blocks` blocks, both at least 1.
    pub(super) fn new(capacity: u64, blocks: u64) -> Self {
        let size = |n: u64| usize::try_from(n).unwrap_or(0);
        let head = u32::try_from(blocks).unwrap_or(OUT - 1);
        let mut newer = vec![OUT; size(u64::from(head) + 1)];
        let mut older = newer.clone();
        for links in [&mut newer, &mut older] {
            if let Some(last) = links.last_mut() {
                *last = head;
            }
        }
        Self {
            capacity: size(capacity).max(1),
            len: 0,
            newer,
            older,
        }
    }

    fn head(&self) -> u32 {
        u32::try_from(self.newer.len() - 1).unwrap_or(NIL)
    }

    fn at(&self, block: u32) -> usize {
        usize::try_from(block)
            .unwrap_or(0)
            .min(self.newer.len() - 1)
    }

    /// Is it there?
    pub(super) fn has(&self, block: u32) -> bool {
        self.newer[self.at(block)] != OUT
    }

    /// Makes it the newest; returns a block that had to go.
    pub(super) fn touch(&mut self, block: u32) -> Option<u32> {
        let known = self.has(block);
        if known {
            self.unlink(block);
        }
        let head = self.head();
        let newest = self.older[self.at(head)];
        let (at_block, at_head, at_newest) = (self.at(block), self.at(head), self.at(newest));
        self.older[at_block] = newest;
        self.newer[at_block] = head;
        self.older[at_head] = block;
        self.newer[at_newest] = block;
        self.len += 1;
        if self.len <= self.capacity {
            return None;
        }
        let oldest = self.newer[at_head];
        self.remove(oldest);
        Some(oldest)
    }

    /// Takes it out, if it is there.
    pub(super) fn remove(&mut self, block: u32) {
        if self.has(block) && block != self.head() {
            self.unlink(block);
            let at = self.at(block);
            self.newer[at] = OUT;
        }
    }

    fn unlink(&mut self, block: u32) {
        let (newer, older) = (self.newer[self.at(block)], self.older[self.at(block)]);
        let (at_newer, at_older) = (self.at(newer), self.at(older));
        self.older[at_newer] = older;
        self.newer[at_older] = newer;
        self.len -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_recently_used_goes_first() {
        let mut cache = PageCache::new(3, 10);
        assert_eq!([1, 2, 3].map(|b| cache.touch(b)), [None; 3]);
        assert_eq!(cache.touch(1), None);
        assert_eq!(cache.touch(4), Some(2));
        assert_eq!(
            [1, 2, 3, 4].map(|b| cache.has(b)),
            [true, false, true, true]
        );
        cache.remove(3);
        cache.remove(9);
        assert_eq!(cache.touch(2), None);
        assert_eq!(cache.touch(0), Some(1));
        assert_eq!(cache.touch(9), Some(4));
    }

    #[test]
    fn it_does_what_a_list_does() {
        let mut random = justitia_cache::lab::Random::new(5);
        let mut cache = PageCache::new(7, 20);
        let mut list: Vec<u32> = Vec::new();
        for _ in 0..5000 {
            let block = u32::try_from(random.below(20)).unwrap();
            let known = list.iter().position(|b| *b == block);
            assert_eq!(cache.has(block), known.is_some());
            known.map(|at| list.remove(at));
            if random.below(4) == 0 {
                cache.remove(block);
                continue;
            }
            list.push(block);
            let gone = (list.len() > 7).then(|| list.remove(0));
            assert_eq!(cache.touch(block), gone);
        }
    }
}
