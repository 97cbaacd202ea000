//! Plans the pools and their weights.

use std::collections::{BTreeMap, BTreeSet};

use justitia_guest_protocol::puts::Name;
use justitia_kernel::cgroup::CgroupId;

/// A pool that was made over the port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pool {
    pub(crate) number: u32,
    pub(crate) weight: u32,
}

/// A change of the pools.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// The cgroup is gone, or the pool's cgroup is not known.
    Destroy { number: u32 },
    /// The first pages of a cgroup came.
    Create {
        cgroup: CgroupId,
        name: Name,
        weight: u32,
    },
    /// The weight of a pool changes; `None` is the default pool.
    SetWeight {
        cgroup: Option<CgroupId>,
        number: u32,
        weight: u32,
    },
}

/// The pools that exist.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pools {
    /// The weight of the default pool.
    pub(crate) default: u32,
    /// The pools of cgroups.
    pub(crate) of: BTreeMap<CgroupId, Pool>,
    /// How many pools the port allows.
    pub(crate) limit: usize,
}

/// The actions that give a pool to each leaf cgroup with evicted pages. Pools are destroyed before others are made.
pub(crate) fn plan(
    members: &BTreeMap<CgroupId, Member>,
    came: &BTreeSet<CgroupId>,
    unmanaged: u32,
    pools: &Pools,
) -> Vec<Action> {
    let is_leaf = |id: &CgroupId| members.get(id).is_some_and(|member| member.leaf);
    let mut actions = Vec::new();
    let (kept, gone): (Vec<_>, Vec<_>) = pools.of.iter().partition(|(id, _)| is_leaf(id));
    for (_, pool) in gone {
        actions.push(Action::Destroy {
            number: pool.number,
        });
    }
    let kept: BTreeMap<CgroupId, Pool> = kept.into_iter().map(|(id, pool)| (*id, *pool)).collect();
    let mut new: Vec<CgroupId> = came
        .iter()
        .copied()
        .filter(|id| is_leaf(id) && !kept.contains_key(id))
        .collect();
    // If there is no room for all, the heaviest in the tree come first.
    let all = kept.keys().chain(&new).copied().collect();
    let parts = weights(members, &all, unmanaged);
    let weight_of = |id: &CgroupId| parts.of.get(id).copied();
    new.sort_unstable_by_key(|id| (std::cmp::Reverse(weight_of(id)), *id));
    new.truncate(pools.limit.saturating_sub(kept.len()));
    let wanted = kept.keys().copied().chain(new.iter().copied()).collect();
    let weights = weights(members, &wanted, unmanaged);
    if weights.default != pools.default {
        actions.push(Action::SetWeight {
            cgroup: None,
            number: justitia_guest_protocol::puts::DEFAULT_POOL,
            weight: weights.default,
        });
    }
    for (cgroup, pool) in &kept {
        let weight = weights.of.get(cgroup).copied().unwrap_or(pool.weight);
        if weight != pool.weight {
            let (cgroup, number) = (Some(*cgroup), pool.number);
            actions.push(Action::SetWeight {
                cgroup,
                number,
                weight,
            });
        }
    }
    for cgroup in new {
        let named = members
            .get(&cgroup)
            .and_then(|member| name(&member.path, cgroup));
        if let (Some(name), Some(weight)) = (named, weights.of.get(&cgroup)) {
            let weight = *weight;
            actions.push(Action::Create {
                cgroup,
                name,
                weight,
            });
        }
    }
    actions
}

/// A pool's name: the cgroup's path with `!` for `/`. A path that is too long, or has other forbidden characters, gets `#` and
/// the cgroup's number at its end: no two names are alike, as no other name has a `#`.
pub(crate) fn name(path: &str, cgroup: CgroupId) -> Option<Name> {
    // The replacement character stands for bytes that are not UTF-8.
    let odd = |c: char| c.is_control() || matches!(c, '!' | '#' | char::REPLACEMENT_CHARACTER);
    let plain = path.replace(odd, "_").replace('/', "!");
    if plain.len() <= Name::MAX && !path.contains(odd) && !plain.is_empty() {
        return Name::new(&plain);
    }
    let end = format!("#{:x}", cgroup.0);
    let room = Name::MAX - end.len();
    let start = (0..=plain.len())
        .find(|at| plain.is_char_boundary(*at) && plain.len() - at <= room)
        .unwrap_or(plain.len());
    Name::new(&format!("{}{end}", plain.get(start..).unwrap_or_default()))
}

// Weights of pools, from the weights of the cgroup tree. A VM's pools have no tree: each pool gets the part that its cgroup has
// of the tree.

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
    /// Whether no other member is below it.
    pub(crate) leaf: bool,
}

/// The weights of pools.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PoolWeights {
    /// Of the pool for blocks of no container.
    pub(crate) default: u32,
    /// Of the wanted cgroups.
    pub(crate) of: BTreeMap<CgroupId, u32>,
}

/// The weights of the pools of the `wanted` cgroups. They divide the parts of other cgroups by the tree. `unmanaged` is the
/// weight of unmanaged cgroups at the top level.
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
    // Siblings with a wanted cgroup, each once.
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

// The cgroups in the kernel's map, if there are more than it has room for.

/// Up to `most` cgroups with the numbers of their pools: first `owners`, which have a pool of their own, then their descendants,
/// equally many of each pool. `numbers` has all.
pub(crate) fn known(
    numbers: &BTreeMap<CgroupId, u32>,
    owners: &BTreeSet<CgroupId>,
    most: usize,
) -> BTreeMap<CgroupId, u32> {
    let mut counts: BTreeMap<u32, usize> = BTreeMap::new();
    let place = |(id, number): (&CgroupId, &u32)| {
        let count = counts.entry(*number).or_default();
        *count += usize::from(!owners.contains(id));
        let place = if owners.contains(id) { 0 } else { *count };
        (place, *id, *number)
    };
    let mut places: Vec<_> = numbers.iter().map(place).collect();
    places.sort_unstable();
    let chosen = places.into_iter().take(most);
    chosen.map(|(_, id, number)| (id, number)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(parent: u64, weight: u32, path: &str, leaf: bool) -> Member {
        Member {
            parent: (parent > 0).then_some(CgroupId(parent)),
            weight,
            path: path.to_owned(),
            leaf,
        }
    }

    fn tree() -> BTreeMap<CgroupId, Member> {
        [
            (CgroupId(1), member(0, 100, "system.slice", false)),
            (CgroupId(2), member(1, 100, "system.slice/db", true)),
            (CgroupId(3), member(1, 300, "system.slice/web", true)),
            (CgroupId(4), member(0, 100, "user.slice", true)),
        ]
        .into()
    }

    fn ids(of: &[u64]) -> BTreeSet<CgroupId> {
        of.iter().copied().map(CgroupId).collect()
    }

    fn create(id: u64, name: &str, weight: u32) -> Action {
        Action::Create {
            cgroup: CgroupId(id),
            name: Name::new(name).unwrap(),
            weight,
        }
    }

    fn weight(id: u64, number: u32, weight: u32) -> Action {
        let cgroup = (id > 0).then_some(CgroupId(id));
        Action::SetWeight {
            cgroup,
            number,
            weight,
        }
    }

    fn pools(of: &[(u64, u32, u32)], limit: usize) -> Pools {
        let of = of.iter().map(|(id, number, weight)| {
            (
                CgroupId(*id),
                Pool {
                    number: *number,
                    weight: *weight,
                },
            )
        });
        Pools {
            default: 6400,
            of: of.collect(),
            limit,
        }
    }

    #[test]
    fn pools_follow_the_containers() {
        for (came, before, expected) in [
            (&[][..], pools(&[], 255), vec![]),
            // Inner nodes and cgroups that are not known have none.
            (&[1, 99], pools(&[], 255), vec![]),
            (
                &[2],
                pools(&[], 255),
                vec![create(2, "system.slice!db", 6400)],
            ),
            // The second takes three quarters of their parent's part.
            (
                &[2, 3],
                pools(&[(2, 7, 6400)], 255),
                vec![weight(2, 7, 1600), create(3, "system.slice!web", 4800)],
            ),
            (&[], pools(&[(2, 7, 1600), (3, 8, 4800)], 255), vec![]),
            // Gone with its cgroup; the other gets its part.
            (
                &[],
                pools(&[(9, 7, 1600), (3, 8, 4800)], 255),
                vec![Action::Destroy { number: 7 }, weight(3, 8, 6400)],
            ),
            // No room: the heaviest by the tree, and those that have one keep it.
            (
                &[2, 3, 4],
                pools(&[], 1),
                vec![create(4, "user.slice", 6400)],
            ),
            (&[2, 3], pools(&[(4, 7, 6400)], 1), vec![]),
            (&[2, 3], pools(&[(4, 7, 6400)], 0), vec![]),
            (
                &[2],
                Pools {
                    default: 100,
                    ..pools(&[], 255)
                },
                vec![weight(0, 0, 6400), create(2, "system.slice!db", 6400)],
            ),
        ] {
            assert_eq!(
                plan(&tree(), &ids(came), 100, &before),
                expected,
                "{came:?} {before:?}"
            );
        }
    }

    #[test]
    fn every_path_has_a_name_of_its_own() {
        let text = |path: &str, id| name(path, CgroupId(id)).unwrap().as_str().to_owned();
        assert_eq!(text("a/b", 1), "a!b");
        assert_eq!(text("a!b", 1), "a_b#1");
        assert_eq!(text("a\nb", 2), "a_b#2");
        assert_eq!(text("a_b#1", 5), "a_b_1#5", "not that of another path");
        assert_eq!(text("a\u{fffd}", 6), "a_#6", "other bytes than those of 7");
        assert_eq!(text("a\u{fffd}", 7), "a_#7");
        assert_eq!(text("", 3), "#3");
        let long = format!("system.slice/docker-{}.scope", "0123456789abcdef".repeat(4));
        let named = text(&long, u64::MAX);
        assert!(
            named.len() == 64 && named.ends_with("cdef.scope#ffffffffffffffff"),
            "{named}"
        );
        let wide = text(&"é".repeat(40), 255);
        assert!(wide.len() <= 64 && wide.ends_with("é#ff"), "{wide}");
    }

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

    #[test]
    fn those_with_many_cgroups_take_no_other_pools_entry() {
        // Two users' pools have 500 cgroups each below them. The others came later.
        let owners: BTreeSet<CgroupId> = [1, 2, 5000, 6000].map(CgroupId).into();
        let mut numbers: BTreeMap<CgroupId, u32> = (10..510).map(|id| (CgroupId(id), 1)).collect();
        numbers.extend((510..1010).map(|id| (CgroupId(id), 2)));
        numbers.extend([(1, 1), (2, 2), (5000, 3), (6000, 4)].map(|(id, n)| (CgroupId(id), n)));
        numbers.extend((6001..6101).map(|id| (CgroupId(id), 4)));
        let found = known(&numbers, &owners, 1000);
        assert!(owners.iter().all(|id| found.contains_key(id)));
        let of = |number: u32| found.values().filter(|n| **n == number).count();
        assert_eq!([1, 2, 3, 4].map(of), [449, 449, 1, 101]);
        assert!(found.iter().all(|(id, number)| numbers[id] == *number));
        let few = known(&numbers, &owners, 3);
        assert_eq!(
            few.into_keys().map(|id| id.0).collect::<Vec<_>>(),
            [1, 2, 5000]
        );
        assert_eq!(known(&numbers, &owners, 5000), numbers);
    }
}
