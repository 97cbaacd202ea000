//! The pools of a VM by name, and by the number that its guest knows them by.

use crate::config::PoolSpec;
use crate::ids::PoolId;
use crate::planner::Target;
use justitia_link::DEFAULT_POOL;
use std::collections::BTreeMap;

/// A pool of a VM.
#[derive(Clone, Debug)]
pub(crate) struct NamedPool {
    pub(crate) name: String,
    pub(crate) id: PoolId,
    /// As it is declared; while weights are planned it may have others.
    pub(crate) spec: PoolSpec,
    /// What it is to reach.
    pub(crate) target: Option<Target>,
    /// Its weight was set by hand while weights were planned.
    pub(crate) pinned: bool,
    /// The guest made it; the others are the host's.
    pub(super) created_over_port: bool,
    /// Blocks that were offered for it, and those of them that were accepted.
    pub(super) offered: u64,
    pub(super) accepted: u64,
}

/// The pools of a VM. A number is never given twice.
#[derive(Debug)]
pub(crate) struct NamedPools {
    pools: BTreeMap<u32, NamedPool>,
    next: u32,
}

impl NamedPools {
    /// A VM's pools with its first, which takes the blocks that belong to no container.
    pub(crate) fn new(default: PoolId) -> Self {
        let mut pools = Self {
            pools: BTreeMap::new(),
            next: DEFAULT_POOL,
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

    /// A pool by what the cache knows it by.
    pub(crate) fn by_id(&self, id: PoolId) -> Option<&NamedPool> {
        self.pools.values().find(|pool| pool.id == id)
    }

    /// All of them, to change them.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut NamedPool> {
        self.pools.values_mut()
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

    /// Forgets a pool.
    pub(crate) fn remove(&mut self, name: &str) {
        self.pools.retain(|_, pool| pool.name != name);
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
        let number = self.next;
        self.next = self.next.saturating_add(1);
        let pool = NamedPool {
            name: name.to_owned(),
            id,
            spec,
            target: None,
            pinned: false,
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
        self.pools.remove(&number);
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &NamedPool)> {
        self.pools.iter().map(|(number, pool)| (*number, pool))
    }
}
