//! Entitlements of pools, and the choice of victims: the paper's policy enforcement (section 4.3).

use super::pool::PoolHandle;
use crate::config::StoreKind;
use crate::ids::VmId;
use justitia_share::{Demand, NodeId, Tree, Weight, entitlements, excess, victim};

/// The paper's eviction size, in blocks: 2 MiB.
pub(crate) const EVICTION_BATCH: u64 = 512;

/// A pool's usage of a store.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PoolUsage {
    /// Its weight in this store. A pool that now uses only the other store has no entitlement here.
    pub(crate) weight: Option<Weight>,
    /// Blocks held.
    pub(crate) used: u64,
}

/// The partition of one store between VMs and their pools, and how it changes during an eviction.
pub(crate) struct Partition {
    /// By node: blocks held, share by weight, and entitlement including what others leave unused.
    used: Vec<u64>,
    by_weight: Vec<u64>,
    entitled: Vec<u64>,
    /// For each VM: its node and its pools' nodes.
    vms: Vec<(NodeId, Vec<NodeId>)>,
}

impl Partition {
    /// Divides `capacity` blocks. For each VM: its weight and its pools' usage.
    pub(crate) fn new(capacity: u64, vms: &[(Weight, Vec<PoolUsage>)]) -> Self {
        let mut tree = Tree::new();
        let mut used = Vec::new();
        let mut uses_store = Vec::new();
        let mut nodes = Vec::with_capacity(vms.len());
        for (weight, usages) in vms {
            let vm = tree.push(None, Demand::unlimited(*weight));
            used.push(usages.iter().map(|s| s.used).sum());
            uses_store.push(true);
            let pools = usages.iter().map(|usage| {
                used.push(usage.used);
                uses_store.push(usage.weight.is_some());
                let mut demand = Demand::unlimited(usage.weight.unwrap_or_default());
                if usage.weight.is_none() {
                    demand.total = 0;
                }
                tree.push(Some(vm), demand)
            });
            let pools: Vec<NodeId> = pools.collect();
            nodes.push((vm, pools));
        }
        let mut by_weight = entitlements(&tree, capacity);
        // Algorithm 1: what a pool well below its share by weight does not use goes to the others. Twice the slack below:
        // a pool at its share is below by one eviction and what was put since, and must not lose the rest for that.
        for (_, pools) in &nodes {
            for &pool in pools {
                let i = pool.index();
                if uses_store[i] && used[i].saturating_add(2 * slack(by_weight[i])) < by_weight[i] {
                    tree[pool].total = used[i];
                }
            }
        }
        let mut entitled = entitlements(&tree, capacity);
        // What is left beyond all demands is divided among all pools, too: those without a weight here have no part of it.
        for (i, _) in uses_store.iter().enumerate().filter(|(_, uses)| !**uses) {
            (by_weight[i], entitled[i]) = (0, 0);
        }
        Self {
            used,
            by_weight,
            entitled,
            vms: nodes,
        }
    }

    /// A pool's entitlement now: its share by weight, or more when others do not use theirs.
    pub(crate) fn entitlement(&self, vm: usize, pool: usize) -> u64 {
        let i = self.vms[vm].1[pool].index();
        self.by_weight[i].max(self.entitled[i])
    }

    /// A VM's entitlement now, likewise.
    pub(crate) fn entitlement_of_vm(&self, vm: usize) -> u64 {
        let i = self.vms[vm].0.index();
        self.by_weight[i].max(self.entitled[i])
    }

    /// The VM and the pool to evict from next, and how many blocks (at most [`EVICTION_BATCH`]).
    pub(crate) fn victim(&self) -> Option<(usize, usize, u64)> {
        let nodes: Vec<_> = self.vms.iter().map(|(vm, _)| *vm).collect();
        let vm = self.pick(&nodes)?;
        let pool = self.pick(&self.vms[vm].1)?;
        let i = self.vms[vm].1[pool].index();
        let blocks = excess(self.used[i], self.entitled[i]).max(slack(self.entitled[i]));
        Some((vm, pool, blocks.clamp(1, EVICTION_BATCH).min(self.used[i])))
    }

    /// Algorithm 1 among siblings. Candidates are those whose usage plus another batch exceeds their share by weight; without
    /// any, all are candidates. Returns the one with the largest excess over its entitlement.
    fn pick(&self, nodes: &[NodeId]) -> Option<usize> {
        let over = |n: &NodeId| {
            self.used[n.index()] + slack(self.by_weight[n.index()]) >= self.by_weight[n.index()]
        };
        let of = |only_over: bool| {
            let used: Vec<_> = nodes
                .iter()
                .map(|n| {
                    if only_over && !over(n) {
                        0
                    } else {
                        self.used[n.index()]
                    }
                })
                .collect();
            let entitled: Vec<_> = nodes.iter().map(|n| self.entitled[n.index()]).collect();
            victim(&used, &entitled, EVICTION_BATCH)
        };
        of(true).or_else(|| of(false))
    }

    /// Notes that `blocks` blocks of a pool were evicted.
    pub(crate) fn record_freed(&mut self, vm: usize, pool: usize, blocks: u64) {
        let (parent, pools) = &self.vms[vm];
        for node in [*parent, pools[pool]] {
            let used = &mut self.used[node.index()];
            *used = used.saturating_sub(blocks);
        }
    }

    /// Notes that a pool has nothing to evict, so that it is not chosen again.
    pub(crate) fn mark_exhausted(&mut self, vm: usize, pool: usize) {
        let left = self.used[self.vms[vm].1[pool].index()];
        self.record_freed(vm, pool, left);
    }
}

/// The tolerance below its share within which a pool counts as using it, and the least that is evicted from it at a time. It is
/// the paper's eviction size, or a sixteenth of a smaller share, so that a pool of a few blocks is not emptied at once.
fn slack(part: u64) -> u64 {
    (part / 16).clamp(1, EVICTION_BATCH)
}

// The weights by which stores are partitioned.

/// The VMs and their pools, with their weights. The admission lock guards it.
#[derive(Default)]
pub(crate) struct WeightTable(pub(crate) Vec<(VmId, Weight, Vec<PoolHandle>)>);

impl WeightTable {
    /// The partition of a store of `capacity` blocks by the current weights and usage.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn weight(w: u64) -> Weight {
        Weight::try_from(w).unwrap()
    }

    fn usage(w: u64, used: u64) -> PoolUsage {
        PoolUsage {
            weight: Some(weight(w)),
            used,
        }
    }

    #[test]
    fn the_pool_with_the_largest_excess_is_evicted_from() {
        let vms = [
            (weight(100), vec![usage(100, 13_500), usage(300, 36_500)]),
            (weight(100), vec![usage(100, 50_000)]),
        ];
        let partition = Partition::new(100_000, &vms);
        assert_eq!(partition.entitlement(0, 0), 12_500);
        assert_eq!(partition.entitlement(0, 1), 37_500, "of the weights alone");
        assert_eq!(partition.victim(), Some((0, 0, EVICTION_BATCH)));
    }

    #[test]
    fn unused_entitlement_goes_to_other_pools_by_weight() {
        let vms = [(
            weight(100),
            vec![usage(100, 40_000), usage(200, 60_000), usage(700, 0)],
        )];
        let partition = Partition::new(100_000, &vms);
        assert_eq!(partition.entitlement(0, 0), 33_333);
        assert_eq!(partition.entitlement(0, 1), 66_667);
        assert_eq!(partition.victim(), Some((0, 0, EVICTION_BATCH)));
    }

    #[test]
    fn a_pool_that_becomes_active_again_is_not_evicted_from() {
        let vms = [(
            weight(100),
            vec![usage(100, 33_000), usage(200, 62_000), usage(700, 5_000)],
        )];
        let partition = Partition::new(100_000, &vms);
        let (_, pool, _) = partition.victim().unwrap();
        assert_ne!(pool, 2);
    }

    #[test]
    fn a_pool_that_changed_its_store_is_evicted_from_first() {
        let mut moved = usage(10_000, 700);
        moved.weight = None;
        let vms = [
            (weight(100), vec![usage(100, 4_000)]),
            (weight(100), vec![usage(1, 5_300), moved]),
        ];
        let mut partition = Partition::new(10_000, &vms);
        assert_eq!(partition.victim(), Some((1, 1, EVICTION_BATCH)));
        partition.mark_exhausted(1, 1);
        assert_eq!(partition.victim().map(|v| (v.0, v.1)), Some((1, 0)));
    }

    #[test]
    fn a_pool_without_a_weight_in_the_store_is_entitled_to_nothing_there() {
        let mut moved = usage(100, 50);
        moved.weight = None;
        // The other pool leaves most of the store.
        let partition = Partition::new(1000, &[(weight(100), vec![usage(100, 10), moved])]);
        assert_eq!(partition.entitlement(0, 0), 1000);
        assert_eq!(partition.entitlement(0, 1), 0);
    }

    #[test]
    fn little_is_evicted_from_small_pools_and_nothing_from_empty_ones() {
        let usages: Vec<_> = (0..1000).map(|i| usage(100, 60 + i % 10)).collect();
        let partition = Partition::new(64_000, &[(weight(100), usages)]);
        let (_, pool, blocks) = partition.victim().unwrap();
        assert_eq!(pool % 10, 9);
        assert!(blocks < 10, "{blocks}");
        let none = Partition::new(100, &[(weight(1), vec![usage(1, 0)])]);
        assert_eq!(none.victim(), None);
    }
}
