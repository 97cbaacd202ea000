//! A disk as the cache sees it.

use crate::VmId;
use crate::block::Key;
use crate::cache::PoolHandle;
use crate::disk::{Generations, Ticket};
use crate::index::Entry;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// A disk of a VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct DiskId {
    /// The part of the key: unique among the disks that the cache knows, used again afterwards.
    pub(crate) number: u32,
    /// Tells a disk from a later one with the same number.
    pub(crate) generation: u32,
}

impl std::fmt::Display for DiskId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "disk{}.{}", self.number, self.generation)
    }
}

/// What an operation needs to know of a disk.
pub(crate) struct DiskState {
    pub(crate) id: DiskId,
    pub(crate) vm: VmId,
    pub(crate) name: String,
    /// Where blocks go that belong to no container.
    pub(crate) default_pool: PoolHandle,
    generations: Generations,
}

pub(crate) type DiskHandle = Arc<DiskState>;

impl DiskState {
    pub(crate) fn new(id: DiskId, vm: VmId, name: String, default_pool: PoolHandle) -> Self {
        Self {
            id,
            vm,
            name,
            default_pool,
            generations: Generations::new(),
        }
    }

    pub(crate) fn key(&self, block: u64) -> Option<Key> {
        Key::new(self.id.number, block)
    }

    /// Taken before a block's content is read for a fill.
    pub(crate) fn ticket(&self, block: u64) -> Ticket {
        self.generations.ticket(block)
    }

    /// May the block be filled under this ticket? Its shard must be locked.
    pub(crate) fn good(&self, _locked: &Entry<'_>, block: u64, ticket: Ticket) -> bool {
        self.generations.good(block, ticket)
    }

    /// For [`Change`](crate::disk::Change) alone: a change of the byte range begins.
    pub(crate) fn begin(&self, off: u64, len: u64) {
        self.generations.begin(off, len);
    }

    /// For [`Change`](crate::disk::Change) alone: a change of the byte range has ended.
    pub(crate) fn end(&self, off: u64, len: u64) {
        self.generations.end(off, len);
    }

    /// From now on nothing is filled, for ever: a change that never ends.
    pub(crate) fn close(&self) {
        self.generations.begin(0, u64::MAX);
    }
}
