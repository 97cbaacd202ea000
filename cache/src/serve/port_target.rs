//! Disks of a VM with a port, as the port knows them: they come and go, while the port stays.

use crate::block::Block;
use crate::frontend::Volume;
use crate::ids::{DiskId, PoolId};
use crate::port::PutTarget;
use justitia_link::Verdict;
use parking_lot::RwLock;
use std::sync::{Arc, Weak};

/// The disk that has a serial now, if it is served. The port does not keep it from being removed.
#[derive(Default)]
pub(super) struct PortTarget(RwLock<Weak<Volume>>);

impl PortTarget {
    /// From now on the serial is this disk's.
    pub(super) fn set(&self, volume: &Arc<Volume>) {
        *self.0.write() = Arc::downgrade(volume);
    }

    fn volume(&self) -> Option<Arc<Volume>> {
        self.0.read().upgrade()
    }
}

impl PutTarget for PortTarget {
    fn id(&self) -> Option<DiskId> {
        self.volume().and_then(|volume| volume.id())
    }

    fn offer(&self, pool: PoolId, block: u64, content: &Block) -> Verdict {
        let volume = self.volume();
        volume.map_or(Verdict::NoDisk, |volume| volume.offer(pool, block, content))
    }
}
