//! The cache's state of a disk.

use super::pool::PoolHandle;
use crate::block::{self, BLOCK_BYTES, BLOCK_SIZE, Key};
use crate::clock;
use crate::ids::{DiskId, VmId};
use crate::index::Entry;
use crate::lock_rank::{LEAF, Ranked};
use crate::residency::{Residency, ResidentEntry};
use crate::ssd_admission::Mean;
use crate::write_epochs::{FillToken, Grain, WriteEpochs, WriteTokens};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The cache's state of a disk.
pub(crate) struct DiskState {
    pub(crate) id: DiskId,
    pub(crate) vm: VmId,
    pub(crate) name: String,
    /// The pool of blocks that belong to no container.
    pub(crate) default_pool: PoolHandle,
    /// The contents that the VM's guest holds, if tracked.
    pub(super) residency: Option<Arc<Residency>>,
    epochs: WriteEpochs,
    /// It has become uncached.
    closed: AtomicBool,
    /// The time that it is busy with reads of the backing store.
    pub(super) busy: Arc<BusyTime>,
}

pub(crate) type DiskHandle = Arc<DiskState>;

impl DiskState {
    pub(crate) fn new(
        id: DiskId,
        vm: VmId,
        name: String,
        default_pool: PoolHandle,
        residency: Option<Arc<Residency>>,
    ) -> Self {
        let grain = match residency {
            Some(_) => Grain::FINE,
            None => Grain::COARSE,
        };
        Self {
            id,
            vm,
            name,
            default_pool,
            residency,
            epochs: WriteEpochs::new(grain),
            closed: AtomicBool::new(false),
            busy: Arc::default(),
        }
    }

    pub(crate) fn key(&self, block: u64) -> Option<Key> {
        Key::new(self.id.number, block)
    }

    /// Begins a read of the backing store.
    pub(crate) fn begin_read(&self) -> DiskRead {
        DiskRead::begin(&self.busy)
    }

    /// The recent mean wait of a read of the backing store, nanoseconds; `None` while too few reads are known.
    pub(crate) fn read_ns(&self) -> Option<u64> {
        self.busy.read_ns()
    }

    /// A token for a fill; taken before the block's content is read.
    pub(crate) fn token(&self, block: u64) -> FillToken {
        self.epochs.token(block)
    }

    /// May the block be filled with this token? Its shard must be locked.
    pub(crate) fn allows_fill(&self, _locked: &Entry<'_>, block: u64, token: FillToken) -> bool {
        self.epochs.allows_fill(block, token)
    }

    /// May the hash of the block's content be set with this token? Its place must be locked.
    pub(crate) fn allows_hash(
        &self,
        _locked: &ResidentEntry<'_>,
        block: u64,
        token: FillToken,
    ) -> bool {
        self.epochs.allows_fill(block, token)
    }

    /// Are the guest's contents of the disk tracked?
    pub(crate) const fn is_tracked(&self) -> bool {
        self.residency.is_some()
    }

    /// Begins a write of the byte range; the write guard calls it. For a tracked disk it returns the tokens with which the
    /// write may set hashes once it has ended.
    pub(crate) fn begin(&self, off: u64, len: u64) -> WriteTokens {
        if self.is_tracked() {
            return self.epochs.begin_with_tokens(off, len);
        }
        self.epochs.begin(off, len);
        WriteTokens::default()
    }

    /// Ends a write of the byte range; the write guard calls it.
    pub(crate) fn end(&self, off: u64, len: u64) {
        self.epochs.end(off, len);
    }

    /// Refuses all later fills, like a write that never ends.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
        self.epochs.begin(0, u64::MAX);
    }

    /// Has it become uncached?
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }
}

// Writes in flight.

/// A write, discard or write-zeroes of the backing store. The guard lives from before the submission until the operation has
/// succeeded, failed or panicked. Meanwhile no block that the range touches is filled.
///
/// [`Cache::invalidate`](crate::Cache::invalidate) requires a guard, so that fills are refused before blocks are removed: a
/// fill in between would stay.
pub(crate) struct WriteGuard {
    disk: DiskHandle,
    off: u64,
    len: u64,
    /// For a tracked disk: the tokens with which the write may set hashes.
    tokens: WriteTokens,
}

impl WriteGuard {
    pub(crate) fn begin(disk: &DiskHandle, off: u64, len: u64) -> Self {
        let tokens = disk.begin(off, len);
        Self {
            disk: DiskHandle::clone(disk),
            off,
            len,
            tokens,
        }
    }

    /// Notes a successful write: the disk holds `content`, all of the range, unchanged since before the submission. The guest
    /// holds its whole blocks.
    pub(crate) fn completed(mut self, content: &[u8]) {
        let (disk, off) = (DiskHandle::clone(&self.disk), self.off);
        let tokens = std::mem::take(&mut self.tokens);
        drop(self);
        if !disk.is_tracked() {
            return;
        }
        let first = off.div_ceil(BLOCK_BYTES);
        let skip = usize::try_from(first * BLOCK_BYTES - off).unwrap_or(usize::MAX);
        let whole = content.get(skip..).unwrap_or_default();
        for (block, content) in (first..).zip(whole.chunks_exact(BLOCK_SIZE)) {
            if let Some(token) = tokens.of(block) {
                disk.served(block, content, token);
            }
        }
    }

    /// The disk that is written.
    pub(crate) fn disk(&self) -> &DiskHandle {
        &self.disk
    }

    /// The blocks that the range touches.
    pub(crate) fn blocks(&self) -> Range<u64> {
        block::touching(self.off, self.len)
    }
}

impl Drop for WriteGuard {
    fn drop(&mut self) {
        self.disk.end(self.off, self.len);
    }
}

// The time that a disk was busy with reads, as `io_ticks` in the kernel's `Documentation/admin-guide/iostats.rst`.

/// The time in which at least one read was in flight. Concurrent reads share it. So per block it is the disk's time, not the
/// reader's wait.
#[derive(Debug, Default)]
pub(crate) struct BusyTime {
    busy: Ranked<Busy, LEAF>,
    /// The recent mean time of a read, nanoseconds; 0 while unknown.
    mean_ns: AtomicU64,
}

#[derive(Debug, Default)]
struct Busy {
    under_way: u32,
    since: Option<Instant>,
    total: Duration,
    /// The readers' mean wait.
    mean: Mean,
}

impl BusyTime {
    fn begin(&self, now: Instant) {
        let mut busy = self.busy.lock();
        busy.under_way += 1;
        busy.since.get_or_insert(now);
    }

    fn end(&self, begun: Instant, now: Instant) {
        let mut busy = self.busy.lock();
        busy.under_way = busy.under_way.saturating_sub(1);
        if busy.under_way == 0
            && let Some(since) = busy.since.take()
        {
            busy.total += now.saturating_duration_since(since);
        }
        let waited = now.saturating_duration_since(begun).as_nanos();
        busy.mean.add(1, u64::try_from(waited).unwrap_or(u64::MAX));
        if let Some(ns) = busy.mean.get() {
            self.mean_ns.store(ns.max(1), Ordering::Relaxed);
        }
    }

    /// The recent mean wait of a read, nanoseconds; `None` while too few are known.
    pub(crate) fn read_ns(&self) -> Option<u64> {
        Some(self.mean_ns.load(Ordering::Relaxed)).filter(|ns| *ns > 0)
    }

    /// The total busy time up to now.
    pub(crate) fn total(&self, now: Instant) -> Duration {
        let busy = self.busy.lock();
        let since = busy.since.map(|since| now.saturating_duration_since(since));
        busy.total + since.unwrap_or_default()
    }
}

/// A read of a disk in flight; dropping it ends the read.
pub(crate) struct DiskRead {
    disk: Arc<BusyTime>,
    begun: Instant,
}

impl DiskRead {
    /// Begins a read of the disk with this busy time.
    pub(super) fn begin(disk: &Arc<BusyTime>) -> Self {
        let begun = clock::now();
        disk.begin(begun);
        let disk = Arc::clone(disk);
        Self { disk, begun }
    }

    /// The time since its beginning.
    pub(crate) fn elapsed(&self) -> Duration {
        clock::since(self.begun)
    }
}

impl Drop for DiskRead {
    fn drop(&mut self) {
        self.disk.end(self.begun, clock::now());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_that_wait_together_share_the_time() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let busy = BusyTime::default();
        for (begin, ms, total) in [
            (true, 10, 0),
            (true, 12, 2),
            (true, 20, 10),
            (false, 30, 20),
            (false, 40, 30),
            // Two have ended, the third reads on.
            (false, 50, 40),
            // Idle meanwhile.
            (true, 100, 40),
            (false, 105, 45),
            // More ends than begins change nothing.
            (false, 200, 45),
        ] {
            match begin {
                true => busy.begin(at(ms)),
                false => busy.end(at(ms), at(ms)),
            }
            assert_eq!(busy.total(at(ms)), Duration::from_millis(total), "{ms}");
        }
    }
}
