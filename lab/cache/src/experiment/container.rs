//! A container: its page cache, and the disk under it, through the cache or without.

use super::backing::{Backing, content, take_reads};
use super::cost::Cost;
use super::page_cache::PageCache;
use justitia_cache::lab::{BLOCK_BYTES, len};
use justitia_cache::{BLOCK_SIZE, BlockDevice, Cache, CachedDisk, PoolId};
use justitia_guest_protocol::puts::Verdict;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// Blocks that are read together at most: the kernel's default readahead, 128 KiB.
const READAHEAD: u32 = 32;
/// Blocks that are written together at most.
const WRITE: u32 = 256;

/// What happened in a container since it started.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    /// Steps of its threads.
    pub(super) operations: u64,
    /// What its applications have read and written, bytes.
    pub(super) bytes: u64,
    /// How long its operations took.
    pub(super) time: Duration,
    /// Blocks that its page cache missed.
    pub(super) gets: u64,
    /// Of these, blocks that the cache had.
    pub(super) hits: u64,
    /// Reads of the disk.
    pub(super) disk_reads: u64,
    /// Blocks that the cache took.
    pub(super) puts: u64,
    /// Blocks that it did not take.
    pub(super) refused: u64,
    /// Blocks that the cache held and that were deleted or written over.
    pub(super) dropped: u64,
    /// Blocks that were not what they ought to be: stale, or another's.
    pub(super) wrong: u64,
}

/// The container's way to the cache.
pub(super) struct Attached {
    pub(super) disk: CachedDisk,
    pub(super) pool: PoolId,
    /// Where no thread writes to the SSD store: the cache.
    pub(super) writes: Option<Arc<Cache>>,
}

/// A container.
pub(super) struct Container {
    pages: PageCache,
    pub(super) backing: Arc<Backing>,
    /// The last write of each block, as the guest knows it.
    versions: Vec<u32>,
    /// Whether the cache has taken a block and was not asked for it since.
    away: Vec<bool>,
    /// Whether a block in memory came from the disk or the cache.
    was_read: Vec<bool>,
    /// None: there is no cache.
    pub(super) cache: Option<Attached>,
    /// What a read of the disk takes.
    delay: Duration,
    pub(super) counts: Counts,
}

impl Container {
    /// With a disk of `blocks` blocks, of which `memory` fit into the page cache. `tag` tells its disk from others'.
    pub(super) fn new(blocks: u64, memory: u64, tag: u32, delay: Duration) -> Self {
        let first = tag << 24;
        let size = usize::try_from(blocks).unwrap_or(0);
        Self {
            pages: PageCache::new(memory, blocks),
            backing: Arc::new(Backing::new(blocks, first, delay)),
            versions: vec![first; size],
            away: vec![false; size],
            was_read: vec![false; size],
            cache: None,
            delay,
            counts: Counts::default(),
        }
    }

    /// Reads blocks, as an application does.
    pub(super) fn read(&mut self, blocks: Range<u32>, cost: &mut Cost) {
        let count = u64::from(blocks.end - blocks.start);
        cost.copied(count);
        cost.bytes += count * BLOCK_BYTES;
        let mut missing = blocks.start..blocks.start;
        for block in blocks {
            if self.pages.has(block) {
                self.fetch(missing, cost);
                self.touch(block, cost);
                missing = block + 1..block + 1;
            } else {
                missing.end = block + 1;
                if missing.end - missing.start == READAHEAD {
                    self.fetch(missing, cost);
                    missing = block + 1..block + 1;
                }
            }
        }
        self.fetch(missing, cost);
    }

    /// Writes blocks. They are written back at once, and no thread waits for that.
    pub(super) fn write(&mut self, blocks: Range<u32>, cost: &mut Cost) {
        cost.copied(u64::from(blocks.end - blocks.start));
        cost.bytes += u64::from(blocks.end - blocks.start) * BLOCK_BYTES;
        let mut from = blocks.start;
        while from < blocks.end {
            let to = blocks.end.min(from + WRITE);
            let mut data = Vec::with_capacity(at(to - from) * BLOCK_SIZE);
            for block in from..to {
                self.drop_away(block);
                self.was_read[at(block)] &= self.pages.has(block);
                self.versions[at(block)] += 1;
                data.extend_from_slice(&content(block.into(), self.versions[at(block)]));
            }
            // The disk does not fail.
            let _ = self.disk().write_at(&data, offset(from), false);
            for block in from..to {
                self.touch(block, cost);
            }
            from = to;
        }
    }

    /// Forgets blocks of a file that was deleted, here and in the cache: the paper's flush.
    pub(super) fn discard(&mut self, blocks: Range<u32>) {
        let len = u64::from(blocks.end - blocks.start) * BLOCK_BYTES;
        for block in blocks.clone() {
            self.pages.remove(block);
            self.drop_away(block);
        }
        let _ = self.disk().discard(offset(blocks.start), len);
    }

    /// Its content is about to change: what the cache holds of it is counted.
    fn drop_away(&mut self, block: u32) {
        let away = std::mem::take(&mut self.away[at(block)]);
        let holds = |cache: &Attached| cache.disk.holds(block.into());
        self.counts.dropped += u64::from(away && self.cache.as_ref().is_some_and(holds));
    }

    /// Waits until what was written is on the disk.
    pub(super) fn fsync(&self, cost: &mut Cost) {
        cost.waited += self.delay;
    }

    fn disk(&self) -> &dyn BlockDevice {
        match &self.cache {
            Some(cache) => &cache.disk,
            None => &*self.backing,
        }
    }

    fn fetch(&mut self, blocks: Range<u32>, cost: &mut Cost) {
        if blocks.is_empty() {
            return;
        }
        let count = u64::from(blocks.end - blocks.start);
        let mut data = vec![0; at(blocks.end - blocks.start) * BLOCK_SIZE];
        take_reads();
        let hits = self.ask(&mut data, offset(blocks.start), cost);
        let reads = take_reads();
        cost.waited += self.delay * u32::try_from(reads).unwrap_or(u32::MAX);
        self.counts.disk_reads += reads;
        self.counts.gets += count;
        self.counts.hits += hits;
        for (block, content) in blocks.zip(data.chunks(BLOCK_SIZE)) {
            let expected = Backing::stamp(block.into(), self.versions[at(block)]);
            self.counts.wrong += u64::from(!content.starts_with(&expected));
            self.away[at(block)] = false;
            self.was_read[at(block)] = true;
            self.touch(block, cost);
        }
    }

    /// Reads a run of blocks that the guest lacks; how many the cache had.
    fn ask(&self, data: &mut [u8], off: u64, cost: &mut Cost) -> u64 {
        let cached = self.cache.as_ref();
        let found = cached.and_then(|c| c.disk.read_found(c.pool, data, off).ok());
        let Some(found) = found else {
            let _ = self.disk().read_at(data, off);
            return 0;
        };
        cost.got(len(data) / BLOCK_BYTES);
        cost.read_ssd(found.ssd);
        found.memory + found.ssd
    }

    /// Makes a block the newest of the page cache, and puts what has to go for it, if it was read: the kernel's cleancache
    /// (`__delete_from_page_cache` up to 5.16) took pages that are `PageMappedToDisk`, which reading sets and writing does not.
    fn touch(&mut self, block: u32, cost: &mut Cost) {
        let Some(evicted) = self.pages.touch(block) else {
            return;
        };
        let Some(cache) = self.cache.as_ref().filter(|_| self.was_read[at(evicted)]) else {
            return;
        };
        let content = content(evicted.into(), self.versions[at(evicted)]);
        cost.put();
        let verdict = cache.disk.offer(cache.pool, evicted.into(), &content);
        // Where no time passes, the device's writers would have none.
        while cache.writes.as_ref().is_some_and(|c| c.write_ssd()) {}
        let accepted = verdict == Verdict::Accepted;
        self.counts.puts += u64::from(accepted);
        self.counts.refused += u64::from(!accepted);
        self.away[at(evicted)] = accepted;
    }

    /// Bytes of it that the cache holds, asked block by block.
    pub(super) fn held(&self) -> u64 {
        let Some(cache) = &self.cache else {
            return 0;
        };
        let held = |(block, _): &(u64, &bool)| cache.disk.holds(*block);
        let away = (0..).zip(&self.away).filter(|(_, away)| **away);
        let count = away.filter(held).count();
        u64::try_from(count).unwrap_or(0) * BLOCK_BYTES
    }
}

fn at(block: u32) -> usize {
    usize::try_from(block).unwrap_or(usize::MAX)
}

fn offset(block: u32) -> u64 {
    u64::from(block) * BLOCK_BYTES
}
