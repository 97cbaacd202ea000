//! A disk as the cache sees it.

use super::pool::PoolHandle;
use crate::block::Key;
use crate::fill_guard::{FillToken, WriteEpochs};
use crate::ids::{DiskId, VmId};
use crate::index::Entry;
use std::sync::Arc;

/// What an operation needs to know of a disk.
pub(crate) struct DiskState {
    pub(crate) id: DiskId,
    pub(crate) vm: VmId,
    pub(crate) name: String,
    /// The pool of blocks that belong to no container.
    pub(crate) default_pool: PoolHandle,
    epochs: WriteEpochs,
}

pub(crate) type DiskHandle = Arc<DiskState>;

impl DiskState {
    pub(crate) fn new(id: DiskId, vm: VmId, name: String, default_pool: PoolHandle) -> Self {
        Self {
            id,
            vm,
            name,
            default_pool,
            epochs: WriteEpochs::new(),
        }
    }

    pub(crate) fn key(&self, block: u64) -> Option<Key> {
        Key::new(self.id.number, block)
    }

    /// A token for a fill; taken before the block's content is read.
    pub(crate) fn token(&self, block: u64) -> FillToken {
        self.epochs.token(block)
    }

    /// May the block be filled with this token? Its shard must be locked.
    pub(crate) fn allows_fill(&self, _locked: &Entry<'_>, block: u64, token: FillToken) -> bool {
        self.epochs.allows_fill(block, token)
    }

    /// A write of the byte range begins; called by the write guard.
    pub(crate) fn begin(&self, off: u64, len: u64) {
        self.epochs.begin(off, len);
    }

    /// A write of the byte range has ended; called by the write guard.
    pub(crate) fn end(&self, off: u64, len: u64) {
        self.epochs.end(off, len);
    }

    /// From now on nothing is filled: as by a write that never ends.
    pub(crate) fn close(&self) {
        self.epochs.begin(0, u64::MAX);
    }
}
