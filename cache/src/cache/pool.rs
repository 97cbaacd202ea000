//! A pool: the blocks of one container of one VM.

use super::pool_curve::{Access, PoolCurve};
use super::stats::Counters;
use crate::block::{Block, Key};
use crate::clock;
use crate::config::{Policy, PoolSpec, StoreKind};
use crate::ids::{PoolId, VmId};
use crate::index::SlotRef;
use crate::lock_rank::{LEAF, LOG, POLICY, Ranked, RankedGuard};
use crate::policy::PoolPolicy;
use crate::ssd_admission::PoolSsdAdmission;
use crate::store::{Append, EXTENT_SLOTS, SegmentOwner, SsdLog, SsdStore};
use justitia_share::Weight;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

pub(crate) type PoolHandle = Arc<Pool>;

/// A pool.
pub(crate) struct Pool {
    pub(crate) id: PoolId,
    pub(crate) vm: VmId,
    pub(crate) name: String,
    spec: Ranked<PoolSpec, LEAF>,
    /// Its blocks in memory, and their eviction policy.
    pub(crate) policy: Ranked<PoolPolicy, POLICY>,
    /// Slots of the memory store that it holds, including free ones. Changed under the policy's lock.
    pub(crate) memory_used: AtomicU64,
    /// Its blocks on the SSD.
    pub(crate) log: Ranked<SsdLog, LOG>,
    /// Slots of the SSD store in its extents. Changed under the log's lock.
    pub(crate) ssd_used: AtomicU64,
    /// Its weight when its puts wait for the admission lock: its fraction of the whole, in ten-thousandths.
    queue_weight: AtomicU32,
    /// The weights by which its blocks are written to the SSD: its VM's, and its own among the VM's pools.
    write_weights: [AtomicU32; 2],
    /// Its entitlement in each store, blocks, as of the last division.
    entitlements: [AtomicU64; 2],
    /// Does its policy treat it as a hybrid pool?
    was_hybrid: AtomicBool,
    pub(crate) count: Counters,
    pub(crate) curve: PoolCurve,
    /// Its admission to the SSD store.
    pub(crate) ssd_admission: PoolSsdAdmission,
}

impl Pool {
    pub(crate) fn new(id: PoolId, vm: VmId, name: String, spec: PoolSpec, policy: Policy) -> Self {
        Self {
            id,
            vm,
            name,
            spec: Ranked::new(spec),
            policy: Ranked::new(PoolPolicy::new(policy)),
            memory_used: AtomicU64::new(0),
            log: Ranked::default(),
            ssd_used: AtomicU64::new(0),
            queue_weight: AtomicU32::new(1),
            write_weights: Default::default(),
            entitlements: Default::default(),
            was_hybrid: AtomicBool::new(false),
            count: Counters::default(),
            curve: PoolCurve::new(),
            ssd_admission: PoolSsdAdmission::default(),
        }
    }

    pub(crate) fn spec(&self) -> PoolSpec {
        *self.spec.lock()
    }

    pub(crate) fn set_spec(&self, spec: PoolSpec) {
        let before = std::mem::replace(&mut *self.spec.lock(), spec);
        let uses_ssd = |spec: PoolSpec| spec.weight(StoreKind::Ssd).is_some();
        if uses_ssd(spec) && !uses_ssd(before) {
            self.ssd_admission.reset();
        }
    }

    /// Stops admission: the pool is being destroyed.
    pub(super) fn close(&self) {
        self.policy.lock().closed = true;
        self.log.lock().closed = true;
    }

    pub(crate) fn queue_weight(&self) -> Weight {
        Weight::try_from(u64::from(self.queue_weight.load(Ordering::Relaxed)))
            .unwrap_or(Weight::MIN)
    }

    /// Sets the weight to `part` of `whole`.
    pub(crate) fn set_queue_weight(&self, part: u64, whole: u64) {
        let scaled = u128::from(part) * 10_000 / u128::from(whole.max(1));
        let weight = u32::try_from(scaled.clamp(1, 10_000)).unwrap_or(1);
        self.queue_weight.store(weight, Ordering::Relaxed);
    }

    /// Sets the weight of its VM. The pool's own write weight is its weight on the SSD.
    pub(crate) fn set_write_weights(&self, vm: Weight) {
        let own = self.spec().weight(StoreKind::Ssd).unwrap_or(Weight::MIN);
        let [of_vm, of_pool] = &self.write_weights;
        of_vm.store(vm.into(), Ordering::Relaxed);
        of_pool.store(own.into(), Ordering::Relaxed);
    }

    /// The owner of its blocks that are written to the SSD.
    fn segment_owner(&self) -> SegmentOwner {
        let [vm_weight, pool_weight] = self.write_weights.each_ref().map(|weight| {
            Weight::try_from(u64::from(weight.load(Ordering::Relaxed))).unwrap_or(Weight::MIN)
        });
        SegmentOwner {
            vm: self.vm,
            vm_weight,
            pool: self.id.index,
            pool_weight,
        }
    }

    /// The locked log, if it belongs to this store. `None` once the store is closed: the log may then belong to the next store.
    pub(crate) fn log_on(&self, ssd: &SsdStore) -> Option<RankedGuard<'_, SsdLog>> {
        // A store is closed before the logs are emptied for its successor. So if the store is open while the log is locked, the
        // log is this store's.
        Some(self.log.lock()).filter(|_| !ssd.closed())
    }

    /// Appends a block to the pool's log on the SSD. If this opens an extent, the extent becomes the pool's. A `reinserted`
    /// block has been in the log before.
    pub(super) fn append(
        &self,
        log: &mut SsdLog,
        ssd: &SsdStore,
        key: Key,
        content: &Block,
        sum: u32,
        reinserted: bool,
    ) -> Append {
        let (append, opened) = log.append(ssd, &self.segment_owner(), key, content, sum);
        if matches!(append, Append::Done(_)) {
            log.count_insertion(reinserted, self.entitlement(StoreKind::Ssd));
        }
        if opened {
            let extent = u64::from(EXTENT_SLOTS);
            self.ssd_used.fetch_add(extent, Ordering::Relaxed);
        }
        append
    }

    const fn entitlement_in(&self, store: StoreKind) -> &AtomicU64 {
        let [memory, ssd] = &self.entitlements;
        match store {
            StoreKind::Memory => memory,
            StoreKind::Ssd => ssd,
        }
    }

    /// The pool's entitlement in a store, blocks, as of the last division.
    pub(crate) fn entitlement(&self, store: StoreKind) -> u64 {
        self.entitlement_in(store).load(Ordering::Relaxed)
    }

    /// Sets the pool's entitlement in a store, in blocks.
    pub(crate) fn set_entitlement(&self, store: StoreKind, blocks: u64) {
        self.entitlement_in(store).store(blocks, Ordering::Relaxed);
        if store == StoreKind::Ssd {
            let is = self.spec().is_hybrid();
            if self.was_hybrid.swap(is, Ordering::Relaxed) || is {
                let ssd = u32::try_from(blocks).unwrap_or(u32::MAX);
                self.policy.lock().set_hybrid(is.then_some(ssd));
            }
        }
    }

    /// Notes an access to the block of this hash.
    pub(crate) fn accessed(&self, hash: u64, how: Access) {
        let entitlement = self.entitlement(StoreKind::Memory);
        self.curve
            .access(hash, how, || self.count.gets(), entitlement);
    }

    /// Slots of a store that the pool holds.
    pub(crate) fn used(&self, store: StoreKind) -> u64 {
        match store {
            StoreKind::Memory => self.memory_used.load(Ordering::Relaxed),
            StoreKind::Ssd => self.ssd_used.load(Ordering::Relaxed),
        }
    }
}

/// One in this many memory hits is timed.
const TIMED: u64 = 64;

impl Counters {
    /// Counts a block that moved after a read from the SSD.
    pub(super) fn moved(&self, to: SlotRef) {
        match to {
            SlotRef::Memory(_) => self.promotions.add(1),
            SlotRef::Ssd(_) => self.reinsertions.add(1),
        }
    }

    /// Counts a read of the disk: its blocks and its time.
    pub(crate) fn disk_read(&self, blocks: u64, time: Duration) {
        self.disk_reads.add(1);
        self.disk_read_blocks.add(blocks);
        let us = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        self.disk_wait_us.add(us);
    }

    /// Starts timing a lookup of `blocks` blocks, if it is in the sample.
    pub(crate) fn begin_hit(&self, blocks: u64) -> Option<Instant> {
        (self.memory_hits.get() % TIMED < blocks).then(clock::now)
    }

    /// Counts `blocks` memory hits since `begun`. They represent the untimed ones.
    pub(crate) fn memory_hit(&self, blocks: u64, begun: Instant) {
        let of = (TIMED / blocks.max(1)).max(1);
        self.hit(blocks.saturating_mul(of), nanos(begun).saturating_mul(of));
    }

    /// Counts `blocks` blocks that were read from the SSD since `begun`.
    pub(crate) fn ssd_hit(&self, blocks: u64, begun: Instant) {
        self.hit(blocks, nanos(begun));
    }

    fn hit(&self, blocks: u64, ns: u64) {
        self.timed_hit_blocks.add(blocks);
        self.timed_hit_ns.add(ns);
    }

    pub(crate) fn gets(&self) -> u64 {
        self.misses.get() + self.memory_hits.get() + self.ssd_hits.get()
    }
}

fn nanos(begun: Instant) -> u64 {
    u64::try_from(clock::since(begun).as_nanos()).unwrap_or(u64::MAX)
}
