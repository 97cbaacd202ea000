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
    /// Where blocks go that belong to no container.
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

    /// Taken before a block's content is read for a fill.
    pub(crate) fn token(&self, block: u64) -> FillToken {
        self.epochs.token(block)
    }

    /// May the block be filled under this token? Its shard must be locked.
    pub(crate) fn allows_fill(&self, _locked: &Entry<'_>, block: u64, token: FillToken) -> bool {
        self.epochs.allows_fill(block, token)
    }

    /// For [`WriteGuard`](crate::disk::WriteGuard) alone: a change of the byte range begins.
    pub(crate) fn begin(&self, off: u64, len: u64) {
        self.epochs.begin(off, len);
    }

    /// For [`WriteGuard`](crate::disk::WriteGuard) alone: a change of the byte range has ended.
    pub(crate) fn end(&self, off: u64, len: u64) {
        self.epochs.end(off, len);
    }

    /// From now on nothing is filled, for ever: a change that never ends.
    pub(crate) fn close(&self) {
        self.epochs.begin(0, u64::MAX);
    }
}
