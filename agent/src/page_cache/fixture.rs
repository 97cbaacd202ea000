//! Tenants for tests.

use std::time::Duration;

use justitia_share::{Tree, Weight};

use crate::model::{Key, Tenant, WorkingSet};

/// A busy, growing tenant with this weight (1 to 10,000) and `file` bytes of file pages.
pub(crate) fn tenant(key: Key, weight: u64, file: u64) -> Tenant {
    Tenant {
        key,
        weight: Weight::try_from(weight).unwrap(),
        sums_weights: false,
        minimum: 0,
        requested_protection: 0,
        cache: file,
        own: file,
        slab: 0,
        orphaned: 0,
        orphaned_in_use: 0,
        orphaned_lately: 0,
        uses_orphaned: 0,
        untargetable: 0,
        other: 0,
        limit: u64::MAX,
        anon: 0,
        swapped_out: 0,
        swapped_in: 0,
        unreclaimable: 0,
        populated: true,
        growing: true,
        paged_in: 1 << 40,
        idle_for: Duration::ZERO,
        unused_for: Duration::ZERO,
        mapped: 0,
        unseen: 0,
        working_set: WorkingSet::default(),
        exempt: None,
    }
}

/// A tree of the values in order, each with the index of its parent; `None` for the top level.
pub(crate) fn tree<T>(nodes: impl IntoIterator<Item = (Option<usize>, T)>) -> Tree<T> {
    let mut tree = Tree::new();
    for (parent, value) in nodes {
        let parent = parent.map(|parent| tree.node(parent).unwrap());
        tree.push(parent, value);
    }
    tree
}
