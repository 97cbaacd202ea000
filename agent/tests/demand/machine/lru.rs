//! A list of blocks by the time of their last use.

use std::collections::{HashMap, VecDeque};

/// Blocks of one kind that a tenant holds. One that was used twice while it was there is on the second list, the kernel's
/// active one, and is evicted after those used once.
#[derive(Default)]
pub(crate) struct Lru {
    /// Blocks with the time of their last use; entries of blocks that were used again since are stale.
    once: VecDeque<(u64, u64)>,
    again: VecDeque<(u64, u64)>,
    used: HashMap<u64, Entry>,
    pages: u64,
    active_pages: u64,
}

#[derive(Clone, Copy)]
struct Entry {
    at: u64,
    again: bool,
    pages: u64,
}

/// The block that is evicted next.
#[derive(Clone, Copy)]
pub(crate) struct Oldest {
    pub(crate) block: u64,
    pub(crate) at: u64,
    pub(crate) again: bool,
    pub(crate) pages: u64,
}

impl Lru {
    /// All pages of 4 KiB.
    pub(crate) fn pages(&self) -> u64 {
        self.pages
    }

    /// Those of blocks that were used twice.
    pub(crate) fn active_pages(&self) -> u64 {
        self.active_pages
    }

    /// Uses a block of so many pages; whether it was there.
    pub(crate) fn touch(&mut self, block: u64, pages: u64, now: u64) -> bool {
        let before = self.remove(block);
        let again = before.is_some();
        let entry = Entry {
            at: now,
            again,
            pages,
        };
        self.used.insert(block, entry);
        self.pages += pages;
        if again {
            self.active_pages += pages;
        }
        let list = if again {
            &mut self.again
        } else {
            &mut self.once
        };
        list.push_back((block, now));
        again
    }

    fn remove(&mut self, block: u64) -> Option<Entry> {
        let entry = self.used.remove(&block)?;
        self.pages -= entry.pages;
        if entry.again {
            self.active_pages -= entry.pages;
        }
        Some(entry)
    }

    /// The block to evict next. Those used once go first.
    pub(crate) fn oldest(&mut self) -> Option<Oldest> {
        for again in [false, true] {
            let list = if again {
                &mut self.again
            } else {
                &mut self.once
            };
            while let Some(&(block, at)) = list.front() {
                if let Some(entry) = self.used.get(&block)
                    && (entry.at, entry.again) == (at, again)
                {
                    let pages = entry.pages;
                    return Some(Oldest {
                        block,
                        at,
                        again,
                        pages,
                    });
                }
                list.pop_front();
            }
        }
        None
    }

    /// Evicts the oldest block.
    pub(crate) fn evict(&mut self) -> Option<Oldest> {
        let oldest = self.oldest()?;
        self.remove(oldest.block);
        Some(oldest)
    }

    /// Drops everything.
    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }
}
