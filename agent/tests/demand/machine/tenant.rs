//! A tenant of the machine: its load, its memory, and what the agent's own sampler makes of its counters.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use justitia_agent::model::{Key, Tenant};
use justitia_agent::page_cache::{
    MemoryCounters, MemorySampler, RECENT_ACCESSES, Reuse, ReuseCounts,
};
use justitia_kernel::PAGE_SIZE;
use justitia_kernel::cgroup::CgroupId;
use justitia_kernel::memory::MemoryStat;
use justitia_share::Weight;
use justitia_share::curve::Sampler;

use super::loads::Op;
use super::lru::Lru;
use super::{Random, STEP};

/// What a tenant does next at a time in seconds; `None` while it does nothing.
pub(crate) type Load = Box<dyn FnMut(f64, &mut Random) -> Option<Op>>;

pub(crate) struct SimTenant {
    pub(crate) weight: u64,
    /// The group it is in.
    pub(crate) group: Option<usize>,
    pub(crate) load: Load,
    pub(crate) file: Lru,
    /// File pages that its processes have mapped; they are never unmapped, and evicted last.
    pub(crate) mapped: Lru,
    pub(crate) slab: Lru,
    pub(crate) anon: Lru,
    /// Anonymous blocks in swap.
    pub(crate) swapped: HashSet<u64>,
    /// File blocks that were evicted, and how many pages had been evicted by then.
    evicted: HashMap<u64, u64>,
    /// `memory.low`, `memory.min`, `memory.max`, pages.
    pub(crate) low: u64,
    pub(crate) min: u64,
    pub(crate) max: u64,
    /// The counters that the kernel keeps, pages.
    stolen: u64,
    refault_file: u64,
    refault_anon: u64,
    /// Refaults of files that would not have been, had a little more memory been theirs (`workingset_test_recent`).
    pub(crate) refault_recent: u64,
    /// The step of its last operation.
    used_at: u64,
    pub(crate) sampler: Sampler,
    pub(crate) reuse: Reuse,
    pub(crate) memory: MemorySampler,
    /// Operations so far, and those that had to wait for the disk.
    pub(crate) done: u64,
    pub(crate) missed: u64,
}

impl SimTenant {
    pub(crate) fn new(weight: u64, group: Option<usize>, load: Load, begun: Instant) -> Self {
        Self {
            weight,
            group,
            load,
            file: Lru::default(),
            mapped: Lru::default(),
            slab: Lru::default(),
            anon: Lru::default(),
            swapped: HashSet::new(),
            evicted: HashMap::new(),
            low: 0,
            min: 0,
            max: u64::MAX,
            stolen: 0,
            refault_file: 0,
            refault_anon: 0,
            refault_recent: 0,
            used_at: 0,
            sampler: Sampler::new(0),
            reuse: Reuse::new(begun, 0),
            memory: MemorySampler::new(begun),
            done: 0,
            missed: 0,
        }
    }

    /// Charged pages.
    pub(crate) fn usage(&self) -> u64 {
        self.file.pages() + self.mapped.pages() + self.slab.pages() + self.anon.pages()
    }

    /// Carries out an operation; whether it has to wait for the disk. A page that comes back before so many were evicted is a
    /// `recent` refault. `hashed`: the block as the agent's sampler sees it.
    pub(crate) fn execute(
        &mut self,
        op: Op,
        clock: u64,
        step: u64,
        recent: u64,
        hashed: impl Fn(u64) -> u64,
    ) -> bool {
        self.done += 1;
        self.used_at = step;
        let missed = match op {
            Op::Read { block, pages } => {
                let pages_read = u32::try_from(pages).unwrap();
                self.sampler.access_pages(hashed(block), 0, pages_read);
                let hit = self.file.touch(block, pages, clock);
                if !hit && let Some(then) = self.evicted.remove(&block) {
                    self.refault_file += pages;
                    let distance = self.stolen.saturating_sub(then);
                    self.refault_recent += if distance <= recent { pages } else { 0 };
                }
                !hit
            }
            Op::Map(block) => !self.mapped.touch(block, 16, clock),
            Op::Touch(block) => {
                let swapped_in = self.swapped.remove(&block);
                self.refault_anon += if swapped_in { 16 } else { 0 };
                self.anon.touch(block, 16, clock);
                swapped_in
            }
            Op::Stat(entry) => {
                self.slab.touch(entry, 1, clock);
                false
            }
            Op::Exit => {
                self.anon.clear();
                self.swapped.clear();
                false
            }
        };
        self.missed += u64::from(missed);
        while self.usage() > self.max {
            if self.evict_file().is_none() && self.evict_slab().is_none() {
                break;
            }
        }
        missed
    }

    /// Evicts the oldest file block; returns its pages.
    pub(crate) fn evict_file(&mut self) -> Option<u64> {
        let oldest = self.file.evict().or_else(|| self.mapped.evict())?;
        self.evicted.insert(oldest.block, self.stolen);
        self.stolen += oldest.pages;
        Some(oldest.pages)
    }

    /// Frees the oldest slab.
    pub(crate) fn evict_slab(&mut self) -> Option<u64> {
        self.slab.evict().map(|oldest| oldest.pages)
    }

    /// Swaps the oldest anonymous block out.
    pub(crate) fn swap_out(&mut self) -> Option<u64> {
        let oldest = self.anon.evict()?;
        self.swapped.insert(oldest.block);
        self.stolen += oldest.pages;
        Some(oldest.pages)
    }

    fn swap_pages(&self) -> u64 {
        self.swapped.len() as u64 * 16
    }

    /// The kernel's counters, as the agent reads them.
    pub(crate) fn sample(&mut self, now: Instant) {
        let active = self.file.active_pages();
        let stat = MemoryStat {
            anon: self.anon.pages() * PAGE_SIZE,
            inactive_anon: self.anon.pages() * PAGE_SIZE,
            inactive_file: (self.file.pages() - active) * PAGE_SIZE,
            active_file: (active + self.mapped.pages()) * PAGE_SIZE,
            file_mapped: self.mapped.pages() * PAGE_SIZE,
            slab_reclaimable: self.slab.pages() * PAGE_SIZE,
            workingset_refault_anon: self.refault_anon,
            workingset_refault_file: self.refault_file,
            pgsteal: self.stolen,
            ..MemoryStat::default()
        };
        let swap = self.swap_pages() * PAGE_SIZE;
        self.memory.record(&MemoryCounters { stat, swap }, now);
        self.memory.other = self.anon.pages() * PAGE_SIZE;
    }

    /// Pages of this tenant that came back after reclaim.
    pub(crate) fn refaulted(&self) -> u64 {
        self.refault_file
    }

    pub(crate) fn record_reuse(&mut self, capacity: u64, now: Instant) {
        let counted = ReuseCounts {
            reuse: self.sampler.counted().clone(),
            evicted: self.sampler.evicted(),
            live: self.sampler.live(RECENT_ACCESSES),
            touched: self.sampler.touched(RECENT_ACCESSES),
            lookbacks: self.sampler.lookbacks().collect(),
        };
        self.reuse.record(counted, capacity, now);
        self.sampler.set_shift(self.reuse.shift());
    }

    /// As the monitor shows it to the planners.
    pub(crate) fn tenant(&self, id: u64, step: u64, swap_free: u64, now: Instant) -> Tenant {
        let memory = &self.memory;
        let cache = memory.file + memory.slab;
        let limit = self.max.saturating_mul(PAGE_SIZE);
        let above_min = (self.usage().saturating_sub(self.min)) * PAGE_SIZE;
        let (swapped_out, swapped_in) = memory.swapped(now);
        Tenant {
            key: Key::Cgroup(CgroupId(id)),
            weight: Weight::try_from(self.weight).unwrap(),
            sums_weights: false,
            minimum: (self.min * PAGE_SIZE).saturating_sub(memory.other),
            requested_protection: 0,
            cache,
            own: cache,
            slab: memory.slab,
            orphaned: 0,
            orphaned_in_use: 0,
            orphaned_lately: 0,
            uses_orphaned: 0,
            untargetable: 0,
            other: memory.other,
            limit: limit.saturating_sub(memory.other),
            anon: memory.swappable.min(above_min).min(swap_free),
            swapped_out,
            swapped_in,
            unreclaimable: 0,
            populated: true,
            growing: memory.growing(now),
            paged_in: memory.paged_in_lately(now),
            idle_for: STEP * u32::try_from(step - self.used_at).unwrap(),
            unused_for: (self.reuse.idle_for())
                .unwrap_or(self.reuse.working_set().observed_for)
                .min(memory.steady_for(now).unwrap_or(Duration::MAX)),
            mapped: memory.mapped,
            unseen: memory.unseen(&self.reuse.working_set(), now),
            working_set: self.reuse.working_set(),
            exempt: None,
        }
    }
}
