//! Who is entitled to what, and who gives room: the paper's policy enforcement (section 4.3).

use crate::Weight;
use justitia_share::{Demand, NodeId, Tree, entitlements, overage, victim};

/// The paper's eviction size, in blocks: 2 MiB.
pub(crate) const BATCH: u64 = 512;

/// What one pool brings to a store.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stake {
    pub(crate) weight: Weight,
    /// Blocks held.
    pub(crate) used: u64,
    /// Does the pool belong in this store? One that has moved away is entitled to nothing here.
    pub(crate) belongs: bool,
}

/// The division of one store between VMs and their pools, and how it changes while room is made.
pub(crate) struct Division {
    /// By node: what is held, what the weights alone give, and what is entitled with what others leave.
    used: Vec<u64>,
    fair: Vec<u64>,
    entitled: Vec<u64>,
    /// For each VM: its node and its pools' nodes.
    vms: Vec<(NodeId, Vec<NodeId>)>,
}

impl Division {
    /// Divides `capacity` blocks. Every VM with its weight and its pools' stakes.
    pub(crate) fn new(capacity: u64, vms: &[(Weight, Vec<Stake>)]) -> Self {
        let mut tree = Tree::new();
        let mut used = Vec::new();
        let mut belongs = Vec::new();
        let mut nodes = Vec::with_capacity(vms.len());
        for (weight, stakes) in vms {
            let vm = tree.push(None, Demand::unlimited(*weight));
            used.push(stakes.iter().map(|s| s.used).sum());
            belongs.push(true);
            let pools = stakes.iter().map(|stake| {
                used.push(stake.used);
                belongs.push(stake.belongs);
                let mut demand = Demand::unlimited(stake.weight);
                if !stake.belongs {
                    demand.total = 0;
                }
                tree.push(Some(vm), demand)
            });
            let pools: Vec<NodeId> = pools.collect();
            nodes.push((vm, pools));
        }
        let fair = entitlements(&tree, capacity);
        // Algorithm 1: who stays well below the part that its weight gives leaves the rest to the others.
        for (_, pools) in &nodes {
            for &pool in pools {
                let i = pool.index();
                if belongs[i] && used[i].saturating_add(2 * slack(fair[i])) < fair[i] {
                    tree[pool].total = used[i];
                }
            }
        }
        let entitled = entitlements(&tree, capacity);
        Self {
            used,
            fair,
            entitled,
            vms: nodes,
        }
    }

    /// What a pool is entitled to now: its part by weight, or more when others leave room.
    pub(crate) fn entitlement(&self, vm: usize, pool: usize) -> u64 {
        let i = self.vms[vm].1[pool].index();
        self.fair[i].max(self.entitled[i])
    }

    /// The VM and the pool that give room next, and how many blocks (at most [`BATCH`]).
    pub(crate) fn victim(&self) -> Option<(usize, usize, u64)> {
        let nodes: Vec<_> = self.vms.iter().map(|(vm, _)| *vm).collect();
        let vm = self.pick(&nodes)?;
        let pool = self.pick(&self.vms[vm].1)?;
        let i = self.vms[vm].1[pool].index();
        let blocks = overage(self.used[i], self.entitled[i]).max(slack(self.entitled[i]));
        Some((vm, pool, blocks.clamp(1, BATCH).min(self.used[i])))
    }

    /// Algorithm 1 among siblings: of those whose usage with another batch exceeds what their weight gives,
    /// the one with the largest excess over what it is entitled to. When nobody exceeds, all are candidates.
    fn pick(&self, nodes: &[NodeId]) -> Option<usize> {
        let over =
            |n: &NodeId| self.used[n.index()] + slack(self.fair[n.index()]) >= self.fair[n.index()];
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
            victim(&used, &entitled, BATCH)
        };
        of(true).or_else(|| of(false))
    }

    /// A pool gave this many blocks.
    pub(crate) fn gave(&mut self, vm: usize, pool: usize, blocks: u64) {
        let (parent, pools) = &self.vms[vm];
        for node in [*parent, pools[pool]] {
            let used = &mut self.used[node.index()];
            *used = used.saturating_sub(blocks);
        }
    }

    /// A pool could give nothing: it is not asked again.
    pub(crate) fn exhausted(&mut self, vm: usize, pool: usize) {
        let left = self.used[self.vms[vm].1[pool].index()];
        self.gave(vm, pool, left);
    }
}

/// How far around its part a pool counts as using it, and the least it gives at a time: the paper's eviction
/// size, or less when the part is small, so that a pool of a few blocks is not emptied at one stroke.
fn slack(part: u64) -> u64 {
    (part / 16).clamp(1, BATCH)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn weight(w: u64) -> Weight {
        Weight::try_from(w).unwrap()
    }

    fn stake(w: u64, used: u64) -> Stake {
        Stake {
            weight: weight(w),
            used,
            belongs: true,
        }
    }

    #[test]
    fn whoever_exceeds_the_most_gives() {
        let vms = [
            (weight(100), vec![stake(100, 13_500), stake(300, 36_500)]),
            (weight(100), vec![stake(100, 50_000)]),
        ];
        let d = Division::new(100_000, &vms);
        assert_eq!(d.entitlement(0, 0), 12_500);
        assert_eq!(d.entitlement(0, 1), 37_500, "of the weights alone");
        assert_eq!(d.victim(), Some((0, 0, BATCH)));
    }

    #[test]
    fn what_is_left_unused_goes_to_the_others_by_weight() {
        let vms = [(
            weight(100),
            vec![stake(100, 40_000), stake(200, 60_000), stake(700, 0)],
        )];
        let d = Division::new(100_000, &vms);
        assert_eq!(d.entitlement(0, 0), 33_333);
        assert_eq!(d.entitlement(0, 1), 66_667);
        assert_eq!(d.victim(), Some((0, 0, BATCH)));
    }

    #[test]
    fn one_that_comes_back_takes_from_those_above_their_part() {
        let vms = [(
            weight(100),
            vec![stake(100, 33_000), stake(200, 62_000), stake(700, 5_000)],
        )];
        let d = Division::new(100_000, &vms);
        let (_, pool, _) = d.victim().unwrap();
        assert_ne!(pool, 2);
    }

    #[test]
    fn who_moved_to_another_store_gives_first() {
        let mut moved = stake(10_000, 700);
        moved.belongs = false;
        let vms = [
            (weight(100), vec![stake(100, 4_000)]),
            (weight(100), vec![stake(1, 5_300), moved]),
        ];
        let mut d = Division::new(10_000, &vms);
        assert_eq!(d.victim(), Some((1, 1, BATCH)));
        d.exhausted(1, 1);
        assert_eq!(d.victim().map(|v| (v.0, v.1)), Some((1, 0)));
    }

    #[test]
    fn small_pools_give_little_and_the_empty_nothing() {
        let stakes: Vec<_> = (0..1000).map(|i| stake(100, 60 + i % 10)).collect();
        let d = Division::new(64_000, &[(weight(100), stakes)]);
        let (_, pool, blocks) = d.victim().unwrap();
        assert_eq!(pool % 10, 9);
        assert!(blocks < 10, "{blocks}");
        let none = Division::new(100, &[(weight(1), vec![stake(1, 0)])]);
        assert_eq!(none.victim(), None);
    }
}
