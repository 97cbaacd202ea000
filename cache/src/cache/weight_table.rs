//! The weights by which stores are partitioned.

use super::partition::{Partition, PoolUsage};
use super::pool::PoolHandle;
use crate::config::StoreKind;
use crate::ids::VmId;
use justitia_share::Weight;

/// The VMs and their pools, with their weights: what is guarded by the admission lock.
#[derive(Default)]
pub(crate) struct WeightTable(pub(crate) Vec<(VmId, Weight, Vec<PoolHandle>)>);

impl WeightTable {
    /// The partition of a store of `capacity` blocks as things stand.
    pub(crate) fn partition(&self, store: StoreKind, capacity: u64, ssd_works: bool) -> Partition {
        let vms: Vec<_> = self
            .0
            .iter()
            .map(|(_, weight, pools)| {
                let usages = pools.iter().map(|pool| PoolUsage {
                    weight: pool.spec().weight_now(store, ssd_works),
                    used: pool.used(store),
                });
                (*weight, usages.collect())
            })
            .collect();
        Partition::new(capacity, &vms)
    }

    pub(crate) fn pool(&self, vm: usize, pool: usize) -> Option<&PoolHandle> {
        self.0.get(vm).and_then(|(_, _, pools)| pools.get(pool))
    }
}
