//! A VM for front ends: its clients, its pools by name, number and tag, and its limits in the daemon.
//!
//! The cache owns its weight, its policy, and the weights of its pools: a pool here is a handle of the cache's pool.

use super::budget::Budget;
use super::workers::VmQueue;
use crate::cache::{Cache, PoolHandle};
use crate::error::CacheError;
use crate::ids::{PoolId, VmId};
use crate::lock_rank::{Ranked, VM_POOLS};
use arc_swap::ArcSwap;
use justitia_guest_protocol::puts::DEFAULT_POOL;
use justitia_share::Weight;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The shift of the class in an I/O priority (`include/uapi/linux/ioprio.h`).
const CLASS_SHIFT: u32 = 13;
/// The best-effort class.
const CLASS_BE: u32 = 2;
/// The shift of the hint, above three bits of level.
const HINT_SHIFT: u32 = 3;

/// A container's tag: the hint of a request's I/O priority, 1 to 1023. A guest may forge tags of its own containers. It reaches
/// no pool of another VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ContainerTag(u16);

impl ContainerTag {
    /// The largest tag.
    pub const MAX: u16 = 1023;

    /// A tag; `None` unless it is 1 to 1023.
    #[must_use]
    pub const fn new(tag: u16) -> Option<Self> {
        if 1 <= tag && tag <= Self::MAX {
            Some(Self(tag))
        } else {
            None
        }
    }

    /// The tag in the I/O priority of a request, which must be of the best-effort class. Hint 0 means no tag.
    #[must_use]
    pub(crate) fn of_priority(priority: u32) -> Option<Self> {
        let hint = u16::try_from((priority >> HINT_SHIFT) & u32::from(Self::MAX)).ok()?;
        (priority >> CLASS_SHIFT == CLASS_BE)
            .then(|| Self::new(hint))
            .flatten()
    }

    /// Its number.
    #[must_use]
    pub const fn get(self) -> u16 {
        self.0
    }
}

/// A VM. Its volumes share its part of the worker threads, its connection limit, its budget and its clients.
pub struct Vm {
    /// Its name; empty for a volume that is served without the cache.
    pub(crate) name: String,
    /// Its id in the cache.
    pub(crate) id: VmId,
    /// Names in the certificates of its clients.
    clients: Vec<String>,
    /// Its requests that wait for a thread that reads or writes an image.
    pub(super) disk_queue: Arc<VmQueue>,
    /// Its requests that wait for a thread that reads the SSD store.
    pub(super) ssd_queue: Arc<VmQueue>,
    /// Its pools. The host changes them, and so does its guest over its port.
    pub(crate) pools: Ranked<VmPools, VM_POOLS>,
    /// The pools of its containers, for front ends whose requests have tags.
    pub(crate) tags: Arc<PoolTags>,
    connections: AtomicUsize,
    /// The budget of mappings and open files of its front ends.
    pub(crate) budget: Arc<Budget>,
}

impl Default for Vm {
    /// A VM that is not in the cache, for a single volume.
    fn default() -> Self {
        Self::unknown(VmId(0), String::new(), Vec::new())
    }
}

impl Vm {
    /// The VM `id` of the cache, with its default pool. Clients with one of the names in `clients` in their certificates may
    /// use its volumes.
    ///
    /// # Errors
    /// When the cache has no such VM.
    pub fn new(
        cache: &Cache,
        id: VmId,
        name: &str,
        clients: Vec<String>,
    ) -> Result<Self, CacheError> {
        let vm = Self::unknown(id, name.to_owned(), clients);
        vm.pools.lock().insert(cache.pool(cache.default_pool(id)?)?);
        Ok(vm)
    }

    fn unknown(id: VmId, name: String, clients: Vec<String>) -> Self {
        let tags = Arc::<PoolTags>::default();
        Self {
            name,
            id,
            clients,
            disk_queue: Arc::default(),
            ssd_queue: Arc::default(),
            pools: Ranked::new(VmPools {
                pools: BTreeMap::new(),
                next: DEFAULT_POOL,
                tags: Arc::clone(&tags),
            }),
            tags,
            connections: AtomicUsize::new(0),
            budget: Budget::of_vm(),
        }
    }

    /// Sets the weight with which its requests wait for worker threads, from now on.
    pub fn set_weight(&self, weight: Weight) {
        self.disk_queue.set_weight(weight);
        self.ssd_queue.set_weight(weight);
    }

    /// May a client whose certificate has these names use its volumes?
    pub(crate) fn admits(&self, names: &[String]) -> bool {
        names.iter().any(|name| self.clients.contains(name))
    }

    /// Counts a connection until the permit is dropped; `None` when there are `limit` already.
    pub(crate) fn connect(self: &Arc<Self>, limit: usize) -> Option<ConnectionPermit> {
        let counted = self
            .connections
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| {
                (n < limit).then_some(n + 1)
            });
        counted.ok().map(|_| ConnectionPermit(Arc::clone(self)))
    }
}

/// One of a VM's connections.
pub(crate) struct ConnectionPermit(Arc<Vm>);

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A pool of a VM.
pub(crate) struct VmPool {
    /// The cache's pool, with its name and its weights.
    pub(crate) pool: PoolHandle,
    /// The guest made it; the host made the others.
    pub(crate) created_over_port: bool,
    /// Blocks that the guest has offered for it.
    pub(crate) offered: u64,
    /// Offered blocks that were accepted.
    pub(crate) accepted: u64,
}

/// The pools of a VM by name, and by the number that its guest uses. No number is used twice.
///
/// The number of a pool that the guest has made is also its tag, up to the largest tag: the guest sets it as the hint of its
/// threads' I/O priority.
pub(crate) struct VmPools {
    pools: BTreeMap<u32, VmPool>,
    next: u32,
    tags: Arc<PoolTags>,
}

impl VmPools {
    /// A pool by its name.
    pub(crate) fn get(&self, name: &str) -> Option<&PoolHandle> {
        let mut pools = self.pools.values().map(|of| &of.pool);
        pools.find(|pool| pool.name == name)
    }

    /// A pool by its number.
    pub(crate) fn by_number(&self, number: u32) -> Option<&VmPool> {
        self.pools.get(&number)
    }

    /// A pool by its number, to count offers for it.
    pub(crate) fn by_number_mut(&mut self, number: u32) -> Option<&mut VmPool> {
        self.pools.get_mut(&number)
    }

    /// All pools with their numbers, in the order of their creation.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &VmPool)> {
        self.pools.iter().map(|(number, pool)| (*number, pool))
    }

    /// The number of pools.
    pub(crate) fn len(&self) -> usize {
        self.pools.len()
    }

    /// Adds a pool that the host has made. Returns its number.
    pub(crate) fn insert(&mut self, pool: PoolHandle) -> u32 {
        self.add(self.next, pool, false)
    }

    /// Adds a pool that the guest has made. Returns its number, which is also its tag, if there is such a tag.
    pub(crate) fn insert_of_guest(&mut self, pool: PoolHandle) -> u32 {
        let mut number = self.next;
        // Skip a tag that the host has given to another pool.
        while tag(number).is_some_and(|tag| self.tags.get(tag).is_some()) {
            number = number.saturating_add(1);
        }
        if let Some(tag) = tag(number) {
            self.tags.set(tag, pool.id);
        }
        self.add(number, pool, true)
    }

    fn add(&mut self, number: u32, pool: PoolHandle, created_over_port: bool) -> u32 {
        self.next = number.saturating_add(1);
        let pool = VmPool {
            pool,
            created_over_port,
            offered: 0,
            accepted: 0,
        };
        self.pools.insert(number, pool);
        number
    }

    /// Forgets a pool and its tag.
    pub(crate) fn remove(&mut self, id: PoolId) {
        self.pools.retain(|_, of| of.pool.id != id);
        self.tags.remove(id);
    }
}

/// The tag of a pool that the guest has made; `None` beyond the last tag.
fn tag(number: u32) -> Option<ContainerTag> {
    u16::try_from(number).ok().and_then(ContainerTag::new)
}

/// The pools of a VM by tag. Every tagged request reads it; changes are rare.
#[derive(Default)]
pub(crate) struct PoolTags(ArcSwap<BTreeMap<ContainerTag, PoolId>>);

impl PoolTags {
    pub(crate) fn get(&self, tag: ContainerTag) -> Option<PoolId> {
        self.0.load().get(&tag).copied()
    }

    /// The tag of a pool.
    pub(crate) fn of(&self, pool: PoolId) -> Option<ContainerTag> {
        let tags = self.0.load();
        let mut found = tags.iter().filter(|(_, of)| **of == pool);
        found.next().map(|(tag, _)| *tag)
    }

    /// Sets a pool's tag. The pool gets the blocks read with the tag; another pool with this tag loses it.
    pub(crate) fn set(&self, tag: ContainerTag, pool: PoolId) {
        self.0.rcu(|tags| {
            let mut tags = BTreeMap::clone(tags);
            tags.insert(tag, pool);
            Arc::new(tags)
        });
    }

    /// Removes the pool's tags.
    pub(crate) fn remove(&self, pool: PoolId) {
        self.0.rcu(|tags| {
            let mut tags = BTreeMap::clone(tags);
            tags.retain(|_, of| *of != pool);
            Arc::new(tags)
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{CacheConfig, Policy, PoolSpec};

    #[test]
    fn a_tag_is_the_hint_of_a_best_effort_priority() {
        let priority = |class: u32, hint: u32, level: u32| class << 13 | hint << 3 | level;
        let tag = |p| ContainerTag::of_priority(p).map(ContainerTag::get);
        assert_eq!(tag(priority(2, 1, 4)), Some(1));
        assert_eq!(tag(priority(2, 1023, 7)), Some(1023));
        for none in [
            0,
            priority(2, 0, 4),
            priority(1, 5, 0),
            priority(3, 5, 0),
            priority(2, 5, 0) | 1 << 16,
            u32::MAX,
        ] {
            assert_eq!(tag(none), None, "{none:#x}");
        }
        assert_eq!(
            (ContainerTag::new(0), ContainerTag::new(1024)),
            (None, None)
        );
    }

    /// A cache, a VM of it, and makes pools in it.
    fn vm() -> (Vm, impl Fn(&str) -> PoolHandle) {
        let cache = Cache::new(CacheConfig::default()).unwrap();
        let id = cache.add_vm("vm", Weight::default(), Policy::Fifo).unwrap();
        let vm = Vm::new(&cache, id, "vm", Vec::new()).unwrap();
        (vm, move |name: &str| {
            let made = cache.create_pool(id, name, PoolSpec::default());
            cache.pool(made.unwrap()).unwrap()
        })
    }

    fn pool_of(vm: &Vm, hint: u16) -> Option<PoolId> {
        vm.tags.get(ContainerTag::new(hint).unwrap())
    }

    #[test]
    fn pools_of_a_guest_are_tags_and_those_of_the_host_are_not() {
        let (vm, make) = vm();
        let [host, a, b, c] = ["host", "a", "b", "c"].map(&make);
        let [of_host, of_a, of_b] = [&host, &a, &b].map(|pool| Some(pool.id));
        let mut pools = vm.pools.lock();
        assert_eq!(pools.insert(host), 1);
        vm.tags.set(ContainerTag::new(3).unwrap(), of_host.unwrap());
        assert_eq!(pools.insert_of_guest(a), 2);
        // The host has given tag 3 to a pool of its own.
        assert_eq!(pools.insert_of_guest(b), 4);
        assert_eq!(
            [1, 2, 3, 4].map(|hint| pool_of(&vm, hint)),
            [None, of_a, of_host, of_b]
        );
        pools.remove(of_a.unwrap());
        pools.remove(of_b.unwrap());
        assert_eq!(
            [2, 3, 4].map(|hint| pool_of(&vm, hint)),
            [None, of_host, None]
        );
        assert_eq!(pools.insert_of_guest(c), 5, "a number is never given again");
    }

    #[test]
    fn beyond_the_last_tag_pools_have_none() {
        let (vm, make) = vm();
        let pool = make("more");
        let mut pools = vm.pools.lock();
        for number in 1..=1024 {
            assert_eq!(pools.insert_of_guest(Arc::clone(&pool)), number);
        }
        assert_eq!(pool_of(&vm, 1023), Some(pool.id));
        assert_eq!(pools.len(), 1025);
    }
}
