//! The order in which a thread takes the cache's locks, checked in debug builds.
//!
//! A thread that holds a lock takes only locks of later ranks. Two threads that take the same locks in different orders could
//! deadlock. Here that is a panic in every test that does it, even without a deadlock.
//!
//! A hit takes one shard; an exclusive hit then takes the policy or the log of the block's pool. A sampled block also takes the
//! curve of the reader's pool; a block of a VM with a port also takes a place of the residency table. A put that finds a free
//! slot takes one pool's policy and then one shard. A miss that fills the cache takes the locks of a put, on the thread of its
//! client.
//!
//! No thread discards under the registry, the admission lock or a log. An SSD store that shrinks waits for writes under none of
//! them: extents are retired first and discarded later.
//!
//! Front ends hold none of these while they take their own locks: a VM's queue before the state of the workers; a queue of
//! completions; the exports.

use parking_lot::{Mutex, MutexGuard};
use std::ops::{Deref, DerefMut};

/// The daemon's VMs by name.
pub(crate) const VMS: u8 = 0;
/// The pools of a VM by name.
pub(crate) const VM_POOLS: u8 = 1;
/// A change of the SSD store from its beginning to its end.
pub(crate) const SSD_RESIZE: u8 = 2;
/// The registry: the cache's VMs, pools and disks.
pub(crate) const REGISTRY: u8 = 3;
/// The switch of the SSD store itself.
pub(crate) const SSD_CHANGE: u8 = 4;
/// The admission lock, which puts wait for when a store is full.
pub(crate) const ADMISSION: u8 = 5;
/// A pool's policy. A thread may hold those of two pools, and takes that of the lower index first.
pub(crate) const POLICY: u8 = 6;
/// A pool's log.
pub(crate) const LOG: u8 = 7;
/// A shard of the index.
pub(crate) const SHARD: u8 = 8;
/// The never used slots of the memory store; a resize then goes through the free ones.
pub(crate) const FRESH: u8 = 9;
/// A lock under which no other is taken: free slots, a residency table, a curve, a pool's weights or its SSD admission, the
/// times of a disk's reads.
pub(crate) const LEAF: u8 = 10;

/// A mutex with a rank.
#[derive(Debug, Default)]
pub(crate) struct Ranked<T, const RANK: u8>(Mutex<T>);

/// Access to the value of a [`Ranked`], until it is dropped.
pub(crate) struct RankedGuard<'a, T> {
    value: MutexGuard<'a, T>,
    _held: Held,
}

impl<T, const RANK: u8> Ranked<T, RANK> {
    pub(crate) const fn new(value: T) -> Self {
        Self(Mutex::new(value))
    }

    /// Locks it.
    pub(crate) fn lock(&self) -> RankedGuard<'_, T> {
        let held = Held::take(RANK);
        RankedGuard {
            value: self.0.lock(),
            _held: held,
        }
    }

    /// As [`lock`](Self::lock), without the check of ranks: for an audit, which holds the locks of all pools.
    #[cfg(test)]
    pub(crate) fn lock_out_of_order(&self) -> MutexGuard<'_, T> {
        self.0.lock()
    }

    /// Is it free?
    #[cfg(test)]
    pub(crate) fn is_free(&self) -> bool {
        self.0.try_lock().is_some()
    }
}

impl<T> Deref for RankedGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> DerefMut for RankedGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.value
    }
}

/// A lock's rank that this thread holds or is about to take. Empty in release builds.
#[cfg(debug_assertions)]
struct Held(u8);

#[cfg(not(debug_assertions))]
struct Held;

#[cfg(not(debug_assertions))]
impl Held {
    const fn take(_rank: u8) -> Self {
        Self
    }
}

#[cfg(debug_assertions)]
thread_local! {
    /// The ranks that this thread holds.
    static HELD: std::cell::RefCell<Vec<u8>> = const { std::cell::RefCell::new(Vec::new()) };
}

#[cfg(debug_assertions)]
impl Held {
    /// # Panics
    /// When the thread holds a lock that must be taken after one of this rank.
    fn take(rank: u8) -> Self {
        HELD.with_borrow_mut(|held| {
            let twice = usize::from(rank == POLICY);
            let same = held.iter().filter(|of| **of == rank).count();
            let last = held.iter().max();
            assert!(
                last.is_none_or(|last| *last <= rank) && same <= twice,
                "expected locks in the order of their ranks, found one of rank {rank} after {held:?}"
            );
            held.push(rank);
        });
        Self(rank)
    }
}

#[cfg(debug_assertions)]
impl Drop for Held {
    fn drop(&mut self) {
        HELD.with_borrow_mut(|held| {
            if let Some(at) = held.iter().rposition(|of| *of == self.0) {
                held.remove(at);
            }
        });
    }
}

#[cfg(all(test, debug_assertions))]
mod tests {
    use super::*;
    use crate::cache::Cache;
    use crate::config::{CacheConfig, Policy, PoolSpec};
    use justitia_share::Weight;

    #[test]
    fn locks_are_taken_in_the_order_of_their_ranks() {
        let (policy, other, log) = (
            Ranked::<(), POLICY>::default(),
            Ranked::<(), POLICY>::default(),
            Ranked::<(), LOG>::default(),
        );
        {
            let _first = policy.lock();
            let _second = other.lock();
            let _then = log.lock();
        }
        // In the order of the release it does not matter.
        let (first, then) = (policy.lock(), log.lock());
        drop(first);
        drop(then);
        drop(policy.lock());
    }

    #[test]
    #[should_panic(expected = "found one of rank 6 after [7]")]
    fn a_policy_after_a_log_is_a_mistake() {
        let (policy, log) = (
            Ranked::<(), POLICY>::default(),
            Ranked::<(), LOG>::default(),
        );
        let _log = log.lock();
        drop(policy.lock());
    }

    #[test]
    #[should_panic(expected = "found one of rank 10 after [10]")]
    fn two_leaves_at_once_are_a_mistake() {
        let leaves = [(); 2].map(|()| Ranked::<(), LEAF>::default());
        let _held = leaves[0].lock();
        drop(leaves[1].lock());
    }

    #[test]
    #[should_panic(expected = "found one of rank 3 after [6]")]
    fn who_holds_a_pools_policy_does_not_change_the_cache() {
        let cache = Cache::new(CacheConfig::default()).unwrap();
        let vm = cache.add_vm("vm", Weight::default(), Policy::Fifo).unwrap();
        let pool = cache.pool(cache.default_pool(vm).unwrap()).unwrap();
        let _held = pool.policy.lock();
        let _ = cache.set_pool(pool.id, PoolSpec::default());
    }
}
