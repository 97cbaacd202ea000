//! The ports of the model's VMs.

use crate::block::Block;
use crate::cache::Cache;
use crate::disk::CachedDisk;
use crate::frontend::Vm;
use crate::ids::{DiskId, PoolId, VmId};
use crate::port::{Port, PutTarget};
use justitia_guest_protocol::puts::{Serial, Verdict};
use parking_lot::Mutex;
use std::sync::Arc;

/// A disk of the model as a port finds it: another one once it was attached again.
pub(super) struct Slot(Mutex<Arc<CachedDisk>>);

impl PutTarget for Slot {
    fn id(&self) -> Option<DiskId> {
        self.0.lock().disk_id()
    }

    fn offer(&self, pool: PoolId, block: u64, content: &Block) -> Verdict {
        self.0.lock().offer(pool, block, content)
    }
}

/// The ports, one a VM.
pub(super) struct Ports {
    pub(super) ports: Vec<Port>,
    cache: Arc<Cache>,
    vms: Vec<Arc<Vm>>,
    slots: Vec<Arc<Slot>>,
    pub(super) sequence: u64,
}

pub(super) fn serial(disk: usize) -> Serial {
    Serial::new(["a", "b", "c"][disk]).unwrap()
}

impl Ports {
    pub(super) fn new(
        cache: &Arc<Cache>,
        vms: &[VmId],
        pools: &[PoolId],
        disks: &[Arc<CachedDisk>],
        vm_of: &[usize],
    ) -> Self {
        let slots: Vec<_> = disks
            .iter()
            .map(|disk| Arc::new(Slot(Mutex::new(disk.clone()))))
            .collect();
        let vms = vms.iter().enumerate().map(|(v, id)| {
            let vm = Vm::new(cache, *id, "vm", Vec::new()).unwrap();
            for id in &pools[v * 3 + 1..v * 3 + 3] {
                vm.pools.lock().insert(cache.pool(*id).unwrap());
            }
            Arc::new(vm)
        });
        let vms: Vec<_> = vms.collect();
        let port = |(v, vm): (usize, &Arc<Vm>)| {
            let port = Port::new(cache.clone(), vm.clone(), true, 1);
            for d in (0..disks.len()).filter(|d| vm_of[*d] == v) {
                port.set_disk(serial(d), Arc::<Slot>::downgrade(&slots[d]));
            }
            port
        };
        Self {
            ports: vms.iter().enumerate().map(port).collect(),
            cache: cache.clone(),
            vms,
            slots,
            sequence: 0,
        }
    }

    pub(super) fn attached(&self, d: usize, disk: &Arc<CachedDisk>) {
        *self.slots[d].0.lock() = disk.clone();
    }

    /// A pool was destroyed and made again.
    pub(super) fn recreated(&self, p: usize, old: PoolId, new: PoolId) {
        let mut pools = self.vms[p / 3].pools.lock();
        pools.remove(old);
        pools.insert(self.cache.pool(new).unwrap());
    }
}
