//! Observing: from the kernel's counters to a snapshot, at a bounded cost.

pub mod device;

mod app_io;
mod cgroup_tree;
mod cpu_budget;
mod memory_sampler;
mod probe_drops;
mod rate_window;
mod reuse;
mod reuse_sampler;
mod system_memory;
mod unmanaged;

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::{Duration, Instant};

use justitia_kernel::Result;
use justitia_kernel::cgroup::{CgroupFs, CgroupId};
use justitia_kernel::memory::MemoryStat;
use justitia_kernel::proc::ProcFs;

pub use app_io::AppIoMonitor;
pub use cgroup_tree::{CgroupTree, Changes, Node, low_of};
pub use cpu_budget::{CpuBudget, process_cpu, thread_cpu};
pub use rate_window::{RateWindows, WINDOW, WindowStats};
pub use reuse::{LIVE, Reuse, ReuseCounts};
pub use reuse_sampler::ReuseSampler;
pub use system_memory::SystemMemory;
pub use unmanaged::{ReclaimFeatures, Unmanaged, UnmanagedReclaim, lru_gen_usable};

use crate::config::Config;
use crate::model::MAX_RECLAIM_CHILDREN;
use crate::model::{Key, Snapshot, Tenant};
use justitia_api::ReclaimExemption;

/// So many tenants are looked at whatever the budget says: a plan needs something to go by.
const ALWAYS: usize = 8;
/// What was read this short a time ago is as of now.
const MOMENT: Duration = Duration::from_millis(100);
/// Without events the tree is rescanned this often.
const RESCAN: Duration = Duration::from_secs(5);
/// After events were lost the tree is rescanned, but no more often than this: who makes cgroups fast enough can lose
/// them again and again.
const RESCAN_LOST: Duration = Duration::from_secs(3);

/// Watches the tree and the memory.
#[derive(Debug)]
pub struct Monitor {
    /// The tree.
    pub cgroups: CgroupTree,
    /// The memory.
    pub memory: SystemMemory,
    /// What is outside any managed cgroup.
    pub unmanaged: Unmanaged,
    /// What applications get.
    pub app_io: AppIoMonitor,
    /// What tenants use of their caches.
    pub reuse: ReuseSampler,
    /// What looking may cost.
    pub budget: CpuBudget,
    features: ReclaimFeatures,
    due: BinaryHeap<Reverse<(Instant, CgroupId)>>,
    rescanned: Instant,
}

impl Monitor {
    /// Looks at the whole tree once.
    ///
    /// # Errors
    /// If `/proc` cannot be read.
    pub fn new(
        fs: &CgroupFs,
        proc: ProcFs,
        features: ReclaimFeatures,
        config: &Config,
        app_io: AppIoMonitor,
        now: Instant,
    ) -> Result<Self> {
        let mut monitor = Self {
            cgroups: CgroupTree::new(fs, features.bfq),
            memory: SystemMemory::new(proc),
            unmanaged: Unmanaged::new(fs.root().clone(), &features, now),
            app_io,
            reuse: ReuseSampler::default(),
            budget: CpuBudget::new(config.cpu_budget / 100.0),
            features,
            due: BinaryHeap::new(),
            rescanned: now,
        };
        monitor.memory.sample(now, 0)?;
        let mut changes = Changes::default();
        monitor.cgroups.rescan(config, now, &mut changes);
        monitor.schedule(&changes, now);
        let mut gone = Changes::default();
        while monitor.sample_next_due(now, &mut gone) > 0 {}
        monitor.sample_unmanaged(now, &mut gone);
        monitor.budget.reset();
        Ok(monitor)
    }

    /// Glances at the free memory, and takes the events that have come. Cheap; for every turn.
    pub fn poll(&mut self, config: &Config, now: Instant) -> Changes {
        self.memory.poll(now);
        let changes = self.process_events(config, now);
        self.app_io.sample(&self.cgroups, now);
        changes
    }

    /// Takes the events that have come.
    pub fn process_events(&mut self, config: &Config, now: Instant) -> Changes {
        let mut changes = self.cgroups.process_events(config, now);
        let since = now.saturating_duration_since(self.rescanned);
        if (self.cgroups.events_lost() && since >= RESCAN_LOST)
            || (self.cgroups.events_unavailable().is_some() && since >= RESCAN)
        {
            self.cgroups.rescan(config, now, &mut changes);
            self.rescanned = now;
        }
        self.schedule(&changes, now);
        changes
    }

    /// Reads what tenants use of their caches, as far as that is due. `capacity` is what can be divided, bytes.
    pub fn sample_reuse(&mut self, capacity: u64, now: Instant) {
        self.app_io
            .sample_reuse(&mut self.reuse, &self.cgroups, capacity, now);
    }

    /// Reads the probes now, for who asks: between two samples there may be seconds, as far as their cost allows.
    pub fn sample_now(&mut self, now: Instant) {
        self.app_io.sample_now(&self.cgroups, now);
    }

    /// Looks at the memory's counters, and at tenants as far as they are due and the budget allows, at a few
    /// always.
    ///
    /// # Errors
    /// If `/proc` cannot be read.
    pub fn sample(&mut self, now: Instant, freed_by_us: u64, changes: &mut Changes) -> Result<()> {
        self.memory.sample(now, freed_by_us)?;
        let mut looked = 0;
        while looked < ALWAYS || self.budget.allows() {
            match self.sample_next_due(now, changes) {
                0 => break,
                n => looked += n,
            }
        }
        self.sample_unmanaged(now, changes);
        Ok(())
    }

    /// Looks at what is outside. What tenants have taken in since they were looked at is not taken for its growth: where
    /// it seems to have grown they are looked at first, as far as the budget allows.
    fn sample_unmanaged(&mut self, now: Instant, changes: &mut Changes) {
        let top_level_changed = self.cgroups.take_top_level_changed();
        let Some(all) = self.unmanaged.read() else {
            return;
        };
        let noise = self.memory.memory().total / 1024;
        let mut taken_in = all.saturating_sub(self.cgroups.taken_in());
        if !top_level_changed && self.unmanaged.seems_to_grow(taken_in, noise) {
            let top = self.cgroups.top_level().to_vec();
            for (looked, id) in top.into_iter().enumerate() {
                if looked >= ALWAYS && !self.budget.allows() {
                    return;
                }
                self.sample_one(id, now, changes);
            }
            taken_in = all.saturating_sub(self.cgroups.taken_in());
        }
        self.unmanaged.take(taken_in, top_level_changed, noise, now);
    }

    /// Looks at one tenant now, whatever it costs: before something is taken from it.
    pub fn sample_one(&mut self, id: CgroupId, now: Instant, changes: &mut Changes) {
        if let Some(node) = self.cgroups.get_mut(id)
            && let Err(error) = node.sample(now)
            && error.is_gone()
        {
            self.cgroups.remove(id, changes);
        }
    }

    /// Takes a tenant's counters that were read elsewhere.
    pub fn record_memory(&mut self, id: CgroupId, stat: &MemoryStat, now: Instant) {
        if let Some(node) = self.cgroups.get_mut(id) {
            node.memory.record(stat, now);
        }
    }

    fn schedule(&mut self, changes: &Changes, now: Instant) {
        self.due
            .extend(changes.added.iter().map(|id| Reverse((now, *id))));
    }

    /// Looks at the tenant that has been due for longest, if any is. Says how many were looked at.
    fn sample_next_due(&mut self, now: Instant, changes: &mut Changes) -> usize {
        let Some(&Reverse((at, id))) = self.due.peek() else {
            return 0;
        };
        if at > now {
            return 0;
        }
        self.due.pop();
        self.sample_one(id, now, changes);
        self.cgroups.check_delegation(id, now, changes);
        let Some(node) = self.cgroups.get(id) else {
            return 1;
        };
        self.due.push(Reverse((node.memory.due(now), id)));
        let (busy, parent) = (node.memory.is_busy(), node.parent);
        1 + parent
            .filter(|_| busy)
            .map_or(0, |parent| self.sample_ancestors(parent, now, changes))
    }

    /// Looks at `id` and all above it, up to one that was looked at a moment ago: what a cgroup takes in counts for all
    /// above it, and would be taken for something else by who compares the two. Says how many were looked at.
    fn sample_ancestors(&mut self, id: CgroupId, now: Instant, changes: &mut Changes) -> usize {
        let mut looked = 0;
        let mut at = Some(id);
        while let Some(node) = at.and_then(|id| self.cgroups.get(id)) {
            if node.memory.age(now).is_some_and(|age| age < MOMENT) {
                break;
            }
            let id = node.cgroup.id();
            at = node.parent;
            self.sample_one(id, now, changes);
            looked += 1;
        }
        looked
    }

    /// What is known now. `exempt` says why nothing may be taken from a tenant, if so.
    pub fn snapshot(
        &mut self,
        config: &Config,
        now: Instant,
        reclaim_in_flight: u64,
        exempt: impl Fn(Key) -> Option<ReclaimExemption>,
    ) -> Snapshot {
        let order = self.cgroups.preorder();
        let mut places = std::collections::HashMap::with_capacity(order.len());
        let mut tenants = Vec::with_capacity(order.len() + 1);
        for id in order {
            let Some(node) = self.cgroups.get(id) else {
                continue;
            };
            places.insert(id, tenants.len());
            let key = Key::Cgroup(id);
            let meter = &node.memory;
            let leaf = node.children.is_empty();
            let unable = self.features.exempts(meter.anon, self.memory.swap_on());
            let crowded = node.children.len() > MAX_RECLAIM_CHILDREN;
            let unable = unable.or_else(|| crowded.then_some(ReclaimExemption::TooManyChildren));
            tenants.push(Tenant {
                key,
                parent: node.parent.and_then(|p| places.get(&p).copied()),
                weight: self.cgroups.weight(node).0,
                floor: 0,
                requested: 0,
                file: meter.file.saturating_sub(node.excluded_file),
                own: 0,
                orphaned: 0,
                untargetable: 0,
                other: meter.other,
                unreclaimable: meter.unreclaimable,
                leaf,
                populated: node.populated,
                growing: leaf && meter.growing(now),
                idle_for: if leaf {
                    meter.idle_for(now)
                } else {
                    Duration::ZERO
                },
                mapped: meter.mapped,
                working_set: self
                    .reuse
                    .working_set(id)
                    .unwrap_or_else(|| meter.working_set(self.features.multi_gen, now)),
                exempt: unable.or_else(|| exempt(key)),
            });
        }
        self.sum_up(&mut tenants);
        let exempt = exempt(Key::Unmanaged);
        let outside =
            self.unmanaged
                .tenant(&self.memory, &tenants, config.unmanaged.weight, now, exempt);
        tenants.push(outside);
        let memory = crate::model::Memory {
            reclaim_in_flight,
            ..self.memory.memory()
        };
        Snapshot { memory, tenants }
    }

    /// What each has of its own, and then everybody's floors, which depend on what it has besides.
    ///
    /// The counters of an inner node are its descendants' too, but not of the same moment: it has at least what they
    /// have.
    fn sum_up(&self, tenants: &mut [Tenant]) {
        let mut below = vec![Below::default(); tenants.len()];
        for i in (0..tenants.len()).rev() {
            let (tenant, sum) = (&mut tenants[i], below[i]);
            tenant.file = tenant.file.max(sum.file);
            tenant.other = tenant.other.max(sum.other);
            tenant.unreclaimable = tenant.unreclaimable.max(sum.unreclaimable);
            tenant.own = tenant.file - sum.file;
            if !tenant.leaf {
                tenant.orphaned = tenant.own;
            }
            let mut others = sum.others;
            if let Key::Cgroup(id) = tenant.key
                && let Some(node) = self.cgroups.get(id)
            {
                (tenant.floor, tenant.requested) = node.floors(tenant.other);
                others |= node.has_unmanaged_children();
            }
            if others {
                tenant.exempt = tenant.exempt.or(Some(ReclaimExemption::UnmanagedChild));
            }
            if let Some(parent) = tenant.parent {
                let parent = &mut below[parent];
                parent.file = parent.file.saturating_add(tenant.file);
                parent.other = parent.other.saturating_add(tenant.other);
                parent.unreclaimable = parent.unreclaimable.saturating_add(tenant.unreclaimable);
                parent.others |= others;
            }
        }
    }
}

/// What a tenant's children have together.
#[derive(Clone, Copy, Default)]
struct Below {
    file: u64,
    other: u64,
    unreclaimable: u64,
    /// Whether any cgroup below is no tenant.
    others: bool,
}
