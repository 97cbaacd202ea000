//! The ports of the model's VMs.

use crate::block::Block;
use crate::cache::Cache;
use crate::config::PoolSpec;
use crate::disk::CachedDisk;
use crate::ids::{DiskId, PoolId, VmId};
use crate::port::{NamedPools, Port, PortVm, PutTarget};
use justitia_link::{Serial, Verdict};
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
    pools: Vec<Arc<Mutex<NamedPools>>>,
    slots: Vec<Arc<Slot>>,
    pub(super) sequence: u64,
}

pub(super) fn serial(disk: usize) -> Serial {
    Serial::new(["a", "b", "c"][disk]).unwrap()
}

fn name(pool: usize) -> &'static str {
    ["default", "memory", "ssd"][pool % 3]
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
        let named = (0..vms.len()).map(|v| {
            let mut named = NamedPools::new(pools[v * 3], Arc::default());
            for (p, id) in (1..).zip(&pools[v * 3 + 1..v * 3 + 3]) {
                named.insert(name(p), *id, PoolSpec::default());
            }
            Arc::new(Mutex::new(named))
        });
        let named: Vec<_> = named.collect();
        let port = |(v, pools): (usize, &Arc<Mutex<NamedPools>>)| {
            let own = (0..disks.len()).filter(|d| vm_of[*d] == v);
            let disks = own.map(|d| (serial(d), slots[d].clone() as Arc<dyn PutTarget>));
            let vm = PortVm {
                id: vms[v],
                name: "vm".into(),
                pools: pools.clone(),
                disks: disks.collect(),
                may_use_ssd: true,
            };
            Port::new(cache.clone(), vm, 1)
        };
        Self {
            ports: named.iter().enumerate().map(port).collect(),
            pools: named,
            slots,
            sequence: 0,
        }
    }

    pub(super) fn attached(&self, d: usize, disk: &Arc<CachedDisk>) {
        *self.slots[d].0.lock() = disk.clone();
    }

    /// A pool was destroyed and made again.
    pub(super) fn recreated(&self, p: usize, id: PoolId) {
        let mut pools = self.pools[p / 3].lock();
        pools.remove(name(p));
        pools.insert(name(p), id, PoolSpec::default());
    }
}
