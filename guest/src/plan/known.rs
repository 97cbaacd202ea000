//! Which cgroups the kernel's map tells apart, where there are more than it has room for.

use std::collections::{BTreeMap, BTreeSet};

use justitia_kernel::cgroup::CgroupId;

/// Up to `most` cgroups, with the number of their pool each: first those that own a pool, then what is below them, of each
/// pool as many as of another. `numbers` has all, `owners` those with a pool of their own.
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
