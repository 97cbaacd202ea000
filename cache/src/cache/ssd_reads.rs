//! Reads of the SSD store count for the pool whose blocks they are of, and for the disk that they are instead of.

use super::disk::DiskHandle;
use super::get::PendingSsdRead;
use super::pool::PoolHandle;
use super::state::Cache;
use crate::clock;
use std::time::Instant;

impl Cache {
    /// Is the block not kept on the SSD, since that is no faster than the disk?
    pub(super) fn leaves_ssd(&self, pending: &PendingSsdRead) -> bool {
        self.owner(pending).is_some_and(|pool| pool.worth.leaves())
    }

    /// The pool that the block is of: not always the one that it is read for.
    pub(crate) fn owner(&self, pending: &PendingSsdRead) -> Option<PoolHandle> {
        self.pool_at(pending.ssd.pool_of(pending.read_ref.slot))
    }

    /// Notes that a read of the disk has read blocks from the SSD since then. `pool` has the first of them. `served`: no
    /// block was missing.
    pub(crate) fn ssd_was_read(
        &self,
        disk: &DiskHandle,
        pool: &PoolHandle,
        begun: Instant,
        served: bool,
    ) {
        let write_ns = self.stores.working_ssd().map_or(0, |ssd| ssd.write_ns());
        pool.worth.set_disk_read(disk.read_ns());
        pool.worth.was_read(clock::since(begun), served, write_ns);
    }
}
