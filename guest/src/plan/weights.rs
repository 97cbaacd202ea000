//! The weights of pools, from the weights of the cgroup tree: a VM's pools have no tree, so each gets the part that its
//! cgroup would get down the tree.

use std::collections::{BTreeMap, BTreeSet};

use justitia_kernel::cgroup::CgroupId;

/// The largest weight of a pool.
const MAX: f64 = 10_000.0;

/// A managed cgroup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Member {
    /// `None` at the top level.
    pub(crate) parent: Option<CgroupId>,
    /// Among its siblings, 1 to 10000.
    pub(crate) weight: u32,
    /// Its path below the mount.
    pub(crate) path: String,
    /// No other member is below it.
    pub(crate) leaf: bool,
}

/// The weights of pools.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PoolWeights {
    /// Of the pool of blocks that belong to no container.
    pub(crate) default: u32,
    /// Of the wanted cgroups.
    pub(crate) of: BTreeMap<CgroupId, u32>,
}

/// The weights of the pools of the `wanted` cgroups. What other cgroups would get is divided among these by the tree.
/// `unmanaged` is the weight at the top level of what is in no managed cgroup.
pub(crate) fn weights(
    members: &BTreeMap<CgroupId, Member>,
    wanted: &BTreeSet<CgroupId>,
    unmanaged: u32,
) -> PoolWeights {
    let lineages: Vec<(CgroupId, Vec<CgroupId>)> = wanted
        .iter()
        .filter(|id| members.contains_key(id))
        .map(|id| (*id, lineage(members, *id)))
        .collect();
    // Siblings that have a wanted cgroup, each once.
    let active: BTreeSet<CgroupId> = lineages
        .iter()
        .flat_map(|(_, line)| line.iter().copied())
        .collect();
    let mut sums: BTreeMap<CgroupId, f64> = BTreeMap::new();
    for member in active.iter().filter_map(|id| members.get(id)) {
        if let Some(parent) = member.parent {
            *sums.entry(parent).or_default() += f64::from(member.weight);
        }
    }
    let part = |id: &CgroupId| {
        let member = members.get(id)?;
        let weight = f64::from(member.weight);
        Some(match member.parent.and_then(|parent| sums.get(&parent)) {
            Some(sum) => weight / sum,
            None => weight,
        })
    };
    let parts: Vec<(CgroupId, f64)> = lineages
        .iter()
        .map(|(id, line)| (*id, line.iter().filter_map(part).product()))
        .collect();
    let unmanaged = f64::from(unmanaged);
    let largest = parts
        .iter()
        .map(|(_, part)| *part)
        .fold(unmanaged, f64::max);
    let scale = scale(largest);
    PoolWeights {
        default: scaled(unmanaged, scale),
        of: parts
            .into_iter()
            .map(|(id, part)| (id, scaled(part, scale)))
            .collect(),
    }
}

/// A cgroup and its ancestors.
fn lineage(members: &BTreeMap<CgroupId, Member>, id: CgroupId) -> Vec<CgroupId> {
    let parent = |id: &CgroupId| members.get(id).and_then(|member| member.parent);
    let ancestors = std::iter::successors(Some(id), parent);
    // The tree's own depth is far smaller.
    ancestors.take(64).collect()
}

/// A power of two, so that weights seldom change when the largest does.
fn scale(largest: f64) -> f64 {
    let mut scale = 1.0;
    while largest * scale * 2.0 <= MAX && scale < 1024.0 {
        scale *= 2.0;
    }
    scale
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "within 1 and 10000"
)]
fn scaled(part: f64, scale: f64) -> u32 {
    (part * scale).round().clamp(1.0, MAX) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn members(of: &[(u64, u64, u32)]) -> BTreeMap<CgroupId, Member> {
        let parent = |id: u64| (id > 0).then_some(CgroupId(id));
        let leaf = |id: u64| !of.iter().any(|(_, parent, _)| *parent == id);
        let member = |(id, above, weight): &(u64, u64, u32)| {
            let member = Member {
                parent: parent(*above),
                weight: *weight,
                path: id.to_string(),
                leaf: leaf(*id),
            };
            (CgroupId(*id), member)
        };
        of.iter().map(member).collect()
    }

    #[test]
    fn weights_follow_the_tree() {
        let tree = [
            (1, 0, 100),
            (2, 0, 300),
            (3, 1, 100),
            (4, 1, 300),
            (5, 2, 50),
            (6, 2, 7),
        ];
        for (wanted, unmanaged, default, expected) in [
            (&[][..], 100, 6400, &[][..]),
            // At the top level its own weight, however few it is of.
            (&[3], 100, 6400, &[6400]),
            (&[3, 4], 100, 6400, &[1600, 4800]),
            // Of the second subtree one cgroup puts: all of its part.
            (&[3, 4, 5], 100, 3200, &[800, 2400, 9600]),
            (&[99], 1, 1024, &[]),
            (&[5], 10_000, 10_000, &[300]),
        ] {
            let ids: BTreeSet<CgroupId> = wanted.iter().copied().map(CgroupId).collect();
            let found = weights(&members(&tree), &ids, unmanaged);
            let of: Vec<u32> = found.of.values().copied().collect();
            assert_eq!((found.default, &of[..]), (default, expected), "{wanted:?}");
        }
    }

    #[test]
    fn a_weight_is_at_least_one_and_a_circle_ends() {
        let of: Vec<(u64, u64, u32)> = (2..2000).map(|id| (id, 1, 1)).collect();
        let mut tree = members(&of);
        tree.extend(members(&[(1, 0, 1)]));
        let wanted = tree.keys().copied().filter(|id| id.0 > 1).collect();
        let found = weights(&tree, &wanted, 10_000);
        assert!(found.of.values().all(|weight| *weight == 1));
        let circle = members(&[(1, 2, 100), (2, 1, 100)]);
        assert_eq!(weights(&circle, &[CgroupId(1)].into(), 100).of.len(), 1);
    }
}
