//! Which pools there are: one for each cgroup without managed children of which pages came, as long as it exists.

use std::collections::{BTreeMap, BTreeSet};

use justitia_kernel::cgroup::CgroupId;
use justitia_link::Name;

use super::weights::{Member, weights};

/// A pool that was made over the port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pool {
    pub(crate) number: u32,
    pub(crate) weight: u32,
}

/// Something to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// A cgroup is gone, or nobody knows whose the pool was.
    Destroy { number: u32 },
    /// A cgroup's pages came.
    Create {
        cgroup: CgroupId,
        name: Name,
        weight: u32,
    },
    /// A pool's weight is another one; `None` is the default pool.
    SetWeight {
        cgroup: Option<CgroupId>,
        number: u32,
        weight: u32,
    },
}

/// What there is.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pools {
    /// The weight of the default pool.
    pub(crate) default: u32,
    /// The pools of cgroups.
    pub(crate) of: BTreeMap<CgroupId, Pool>,
    /// How many the port allows to be made.
    pub(crate) limit: usize,
}

/// What to do so that the pools are those of the cgroups whose pages came. Pools are destroyed before others are made.
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
    // Where there is no room for all: the heaviest by the tree.
    let all = kept.keys().chain(&new).copied().collect();
    let parts = weights(members, &all, unmanaged);
    let weight_of = |id: &CgroupId| parts.of.get(id).copied();
    new.sort_by_key(|id| (std::cmp::Reverse(weight_of(id)), *id));
    new.truncate(pools.limit.saturating_sub(kept.len()));
    let wanted = kept.keys().copied().chain(new.iter().copied()).collect();
    let weights = weights(members, &wanted, unmanaged);
    if weights.default != pools.default {
        actions.push(Action::SetWeight {
            cgroup: None,
            number: justitia_link::DEFAULT_POOL,
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

/// A pool's name: the cgroup's path with `!` for `/`. One that is too long, or has other characters that a name may not
/// have, ends with `#` and the cgroup's number, so that no two are alike: no other name has a `#`.
pub(crate) fn name(path: &str, cgroup: CgroupId) -> Option<Name> {
    // The replacement character stands for any bytes that are no text.
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
}
