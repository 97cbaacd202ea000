//! The pools of a VM by name, and by the number that its guest knows them by.
//!
//! The number of a pool that the guest has made is its tag in requests, too, as far as tags reach: its I/O is known by the
//! hint that the guest gives its threads.

use crate::config::PoolSpec;
use crate::frontend::{ContainerTag, Tenant};
use crate::ids::PoolId;
use justitia_link::DEFAULT_POOL;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A pool of a VM.
#[derive(Clone, Debug)]
pub(crate) struct NamedPool {
    pub(crate) name: String,
    pub(crate) id: PoolId,
    pub(crate) spec: PoolSpec,
    /// The guest made it; the others are the host's.
    pub(super) created_over_port: bool,
    /// Blocks that were offered for it, and those of them that were accepted.
    pub(super) offered: u64,
    pub(super) accepted: u64,
}

/// The pools of a VM. A number is never given twice.
pub(crate) struct NamedPools {
    pools: BTreeMap<u32, NamedPool>,
    next: u32,
    /// Has the tags.
    tenant: Arc<Tenant>,
}

impl NamedPools {
    /// A VM's pools with its first, which takes the blocks that belong to no container.
    pub(crate) fn new(default: PoolId, tenant: Arc<Tenant>) -> Self {
        let mut pools = Self {
            pools: BTreeMap::new(),
            next: DEFAULT_POOL,
            tenant,
        };
        pools.insert("default", default, PoolSpec::default());
        pools
    }

    /// A pool by its name.
    pub(crate) fn get(&self, name: &str) -> Option<&NamedPool> {
        self.pools.values().find(|pool| pool.name == name)
    }

    /// A pool by its name, to change it.
    pub(crate) fn get_mut(&mut self, name: &str) -> Option<&mut NamedPool> {
        self.pools.values_mut().find(|pool| pool.name == name)
    }

    /// The names, in the order in which the pools were made.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.pools.values().map(|pool| pool.name.as_str())
    }

    /// Adds a pool that the host has made. Returns its number.
    pub(crate) fn insert(&mut self, name: &str, id: PoolId, spec: PoolSpec) -> u32 {
        self.add(name, id, spec, false)
    }

    /// The pool has another ⟨store, weight⟩.
    pub(crate) fn set_spec(&mut self, name: &str, spec: PoolSpec) {
        if let Some(pool) = self.get_mut(name) {
            pool.spec = spec;
        }
    }

    /// Forgets a pool and its tag.
    pub(crate) fn remove(&mut self, name: &str) {
        let found = self.pools.iter().find(|(_, pool)| pool.name == name);
        if let Some(number) = found.map(|(number, _)| *number) {
            self.remove_number(number);
        }
    }

    /// Those that the guest has made.
    pub(crate) fn of_guest(&self) -> impl Iterator<Item = PoolId> {
        let all = self.pools.values();
        all.filter(|pool| pool.created_over_port)
            .map(|pool| pool.id)
    }

    pub(super) fn len(&self) -> usize {
        self.pools.len()
    }

    pub(super) fn add(
        &mut self,
        name: &str,
        id: PoolId,
        spec: PoolSpec,
        created_over_port: bool,
    ) -> u32 {
        let mut number = self.next;
        if created_over_port {
            // Not one that the host has given another pool as a tag.
            while tag(number).is_some_and(|tag| self.tenant.tags.get(tag).is_some()) {
                number = number.saturating_add(1);
            }
            if let Some(tag) = tag(number) {
                self.tenant.tags.set(tag, id);
            }
        }
        self.next = number.saturating_add(1);
        let pool = NamedPool {
            name: name.to_owned(),
            id,
            spec,
            created_over_port,
            offered: 0,
            accepted: 0,
        };
        self.pools.insert(number, pool);
        number
    }

    pub(super) fn by_number(&self, number: u32) -> Option<&NamedPool> {
        self.pools.get(&number)
    }

    pub(super) fn by_number_mut(&mut self, number: u32) -> Option<&mut NamedPool> {
        self.pools.get_mut(&number)
    }

    pub(super) fn remove_number(&mut self, number: u32) {
        if let Some(pool) = self.pools.remove(&number) {
            self.tenant.tags.remove(pool.id);
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &NamedPool)> {
        self.pools.iter().map(|(number, pool)| (*number, pool))
    }
}

/// The tag of a pool that the guest has made; `None` beyond the last tag.
fn tag(number: u32) -> Option<ContainerTag> {
    u16::try_from(number).ok().and_then(ContainerTag::new)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(index: u32) -> PoolId {
        let generation = 1;
        PoolId { index, generation }
    }

    fn pool_of(tenant: &Tenant, hint: u16) -> Option<u32> {
        let pool = tenant.tags.get(ContainerTag::new(hint).unwrap());
        pool.map(|pool| pool.index)
    }

    #[test]
    fn pools_of_a_guest_are_tags_and_those_of_the_host_are_not() {
        let tenant = Arc::new(Tenant::default());
        let mut pools = NamedPools::new(id(0), Arc::clone(&tenant));
        let spec = PoolSpec::default();
        assert_eq!(pools.insert("host", id(1), spec), 1);
        tenant.tags.set(ContainerTag::new(3).unwrap(), id(1));
        assert_eq!(pools.add("a", id(2), spec, true), 2);
        // The host has given tag 3 to a pool of its own.
        assert_eq!(pools.add("b", id(3), spec, true), 4);
        assert_eq!(
            [1, 2, 3, 4].map(|hint| pool_of(&tenant, hint)),
            [None, Some(2), Some(1), Some(3)]
        );
        pools.remove_number(2);
        pools.remove("b");
        assert_eq!(
            [2, 3, 4].map(|hint| pool_of(&tenant, hint)),
            [None, Some(1), None]
        );
        assert_eq!(
            pools.add("c", id(4), spec, true),
            5,
            "a number is never given again"
        );
    }

    #[test]
    fn beyond_the_last_tag_pools_have_none() {
        let tenant = Arc::new(Tenant::default());
        let mut pools = NamedPools::new(id(0), Arc::clone(&tenant));
        for number in 1..=1024 {
            assert_eq!(
                pools.add("more", id(number), PoolSpec::default(), true),
                number
            );
        }
        assert_eq!(pool_of(&tenant, 1023), Some(1023));
        assert_eq!(pools.len(), 1025);
    }
}
