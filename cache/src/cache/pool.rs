//! A pool: what one container of one VM holds.

use crate::Weight;
use crate::block::{PoolId, VmId};
use crate::cache::{Counts, PoolSpec, StoreKind};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

pub(crate) type PoolHandle = Arc<Pool>;

/// A pool.
pub(crate) struct Pool {
    pub(crate) id: PoolId,
    pub(crate) vm: VmId,
    pub(crate) name: String,
    spec: Mutex<PoolSpec>,
    pub(crate) count: Counters,
}

impl Pool {
    pub(crate) fn new(id: PoolId, vm: VmId, name: String, spec: PoolSpec) -> Self {
        Self {
            id,
            vm,
            name,
            spec: Mutex::new(spec),
            count: Counters::default(),
        }
    }

    pub(crate) fn spec(&self) -> PoolSpec {
        *self.spec.lock()
    }

    pub(crate) fn set_spec(&self, spec: PoolSpec) {
        *self.spec.lock() = spec;
    }

    pub(crate) fn store(&self) -> StoreKind {
        self.spec().store
    }

    pub(crate) fn weight(&self) -> Weight {
        self.spec().weight
    }
}

/// What happened to a pool.
#[derive(Default)]
pub(crate) struct Counters {
    pub(crate) gets: Counter,
    pub(crate) memory_hits: Counter,
    pub(crate) ssd_hits: Counter,
    pub(crate) puts: Counter,
    pub(crate) puts_dropped: Counter,
    pub(crate) evictions: Counter,
    pub(crate) invalidations: Counter,
}

impl Counters {
    pub(crate) fn read(&self) -> Counts {
        Counts {
            gets: self.gets.get(),
            memory_hits: self.memory_hits.get(),
            ssd_hits: self.ssd_hits.get(),
            puts: self.puts.get(),
            puts_dropped: self.puts_dropped.get(),
            evictions: self.evictions.get(),
            invalidations: self.invalidations.get(),
        }
    }
}

/// A number that only grows.
#[derive(Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
