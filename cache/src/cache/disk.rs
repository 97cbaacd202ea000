//! A disk as the cache sees it.

use super::busy_time::{BusyTime, DiskRead};
use super::pool::PoolHandle;
use crate::block::Key;
use crate::ids::{DiskId, VmId};
use crate::index::Entry;
use crate::residency::{Residency, ResidentEntry};
use crate::write_epochs::{FillToken, Grain, WriteEpochs, WriteTokens};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// What an operation needs to know of a disk.
pub(crate) struct DiskState {
    pub(crate) id: DiskId,
    pub(crate) vm: VmId,
    pub(crate) name: String,
    /// The pool of blocks that belong to no container.
    pub(crate) default_pool: PoolHandle,
    /// What the VM's guest holds, if that is tracked.
    pub(super) residency: Option<Arc<Residency>>,
    epochs: WriteEpochs,
    /// It is not cached any more.
    closed: AtomicBool,
    /// With reads of the backing store.
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

    /// A read of the backing store begins.
    pub(crate) fn begin_read(&self) -> DiskRead {
        DiskRead::begin(&self.busy)
    }

    /// What a reader of the backing store has waited lately, nanoseconds; `None` while too few reads are known.
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

    /// Is it known what the guest holds of the disk?
    pub(crate) const fn is_tracked(&self) -> bool {
        self.residency.is_some()
    }

    /// A write of the byte range begins; called by the write guard. Of a tracked disk it returns the tokens with which
    /// the write may set hashes once it has ended.
    pub(crate) fn begin(&self, off: u64, len: u64) -> WriteTokens {
        if self.is_tracked() {
            return self.epochs.begin_with_tokens(off, len);
        }
        self.epochs.begin(off, len);
        WriteTokens::default()
    }

    /// A write of the byte range has ended; called by the write guard.
    pub(crate) fn end(&self, off: u64, len: u64) {
        self.epochs.end(off, len);
    }

    /// From now on nothing is filled: as by a write that never ends.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
        self.epochs.begin(0, u64::MAX);
    }

    /// Is it not cached any more?
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }
}
