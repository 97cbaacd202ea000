//! The schedule of sampling: busy tenants often, quiet ones seldom, all within a CPU budget.

mod app_io;
mod cpu_budget;
mod due_queue;
mod rate_window;

pub use app_io::AppIoMonitor;
pub use cpu_budget::{CpuBudget, process_cpu, thread_cpu};
pub use due_queue::DueQueue;
pub use rate_window::{WINDOW, WindowStats};

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use justitia_cgroup_tree::{Changes, Rule};
use justitia_kernel::block::bfq_disks;
use justitia_kernel::cgroup::{CgroupFs, CgroupId};
use justitia_kernel::proc::ProcFs;
use justitia_kernel::{Result, lru_gen};

use crate::config::Config;
use crate::model::WorkingSet;
use crate::page_cache::system_memory::SystemMemory;
use crate::page_cache::unmanaged::Unmanaged;
use crate::page_cache::{
    CgroupTree, Handover, MemoryCounters, MemorySampler, ReclaimFeatures, ReuseSampler, handover,
    lru_gen_usable,
};

/// Tenants that are sampled even if the budget is exhausted: the planners need some current values.
const MIN_SAMPLED: usize = 8;
/// A younger sample counts as current.
const CURRENT: Duration = Duration::from_millis(100);
/// The period of rescanning the tree if events do not report every change.
const RESCAN_PERIOD: Duration = Duration::from_secs(5);
/// The least time between two rescans after lost events. A delegatee that creates cgroups fast enough can cause lost events
/// again and again.
const MIN_RESCAN_PERIOD: Duration = Duration::from_secs(3);

/// Samples the cgroup tree, the memory and the probes.
#[derive(Debug)]
pub struct Monitor {
    /// The managed cgroups.
    pub cgroups: CgroupTree,
    /// The host's memory.
    pub memory: SystemMemory,
    /// The memory outside managed cgroups, as a tenant.
    pub unmanaged: Unmanaged,
    /// The I/O of applications.
    pub app_io: AppIoMonitor,
    /// The tenants' miss-ratio curves.
    pub reuse: ReuseSampler,
    /// Working sets that the previous agent knew.
    pub handover: Handover,
    /// The CPU budget of sampling.
    pub budget: CpuBudget,
    pub(super) features: ReclaimFeatures,
    due: DueQueue,
    rescanned_at: Instant,
}

impl Monitor {
    /// Samples the whole tree once.
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
            cgroups: CgroupTree::new(fs, features.bfq, MemorySampler::new),
            memory: SystemMemory::new(proc),
            unmanaged: Unmanaged::new(fs.root().clone(), &features, now),
            app_io,
            reuse: ReuseSampler::default(),
            handover: Handover::default(),
            budget: CpuBudget::new(config.cpu_budget / 100.0),
            features,
            due: DueQueue::default(),
            rescanned_at: now,
        };
        monitor.memory.sample(now, 0)?;
        let mut changes = Changes::default();
        monitor.cgroups.rescan(&config.rules, now, &mut changes);
        monitor.schedule(&changes, now);
        let mut removed = Changes::default();
        while monitor.sample_next_due(now, &mut removed) > 0 {}
        monitor.sample_unmanaged(now, &mut removed);
        monitor.budget.reset();
        Ok(monitor)
    }

    /// Reads the free memory and the probes, and processes events. This is cheap, and done every tick.
    pub fn poll(&mut self, config: &Config, now: Instant) -> Changes {
        self.memory.poll(now);
        let changes = self.process_events(config, now);
        self.app_io.sample(&self.cgroups, now);
        changes
    }

    /// Processes pending events. Rescans the tree if they do not suffice.
    pub fn process_events(&mut self, config: &Config, now: Instant) -> Changes {
        let mut changes = self.cgroups.process_events(&config.rules, now);
        let since = now.saturating_duration_since(self.rescanned_at);
        if (self.cgroups.events_lost() && since >= MIN_RESCAN_PERIOD)
            || (self.cgroups.events_incomplete().is_some() && since >= RESCAN_PERIOD)
        {
            self.cgroups.rescan(&config.rules, now, &mut changes);
            self.rescanned_at = now;
        }
        self.schedule(&changes, now);
        changes
    }

    /// Adopts other rules of the configuration.
    pub fn apply_rules(&mut self, rules: &[Rule], now: Instant, changes: &mut Changes) {
        self.cgroups.apply_rules(rules, now, changes);
        self.schedule(changes, now);
    }

    /// Reads the tenants' reuse times, when due. `capacity` is the page cache that can be divided, bytes.
    pub fn sample_reuse(&mut self, capacity: u64, now: Instant) {
        self.app_io
            .sample_reuse(&mut self.reuse, &self.cgroups, capacity, now);
    }

    /// Leaves the tenants' working sets to the next agent, in the state directory. This includes those of the previous agent
    /// that this one has not observed for long enough itself.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn hand_over(&self, state: &Path, boot: &str) -> std::io::Result<()> {
        let ids = self.cgroups.breadth_first().into_iter();
        let now = Instant::now();
        let known = |id| self.known_set(id, now);
        let sets = ids.filter_map(|id| Some((id, known(id)?)));
        handover::leave(state, boot, sets)
    }

    /// A tenant's working set as far as it is known by its accesses: to this agent, or to the previous one.
    pub(crate) fn known_set(&self, id: CgroupId, now: Instant) -> Option<WorkingSet> {
        let used = self.reuse.idle_for(id).is_some();
        self.handover
            .known(id, self.reuse.working_set(id), used, now)
    }

    /// Reads the probes now, for the status: because of their cost two samples may be seconds apart.
    pub fn sample_now(&mut self, now: Instant) {
        self.app_io.sample_now(&self.cgroups, now);
    }

    /// Samples the host's memory and the due tenants, as far as the budget allows, but always a few. `freed_by_us`: bytes that
    /// this agent's reclaim of cgroups has freed since the last call.
    ///
    /// # Errors
    /// If `/proc` cannot be read.
    pub fn sample(&mut self, now: Instant, freed_by_us: u64, changes: &mut Changes) -> Result<()> {
        self.memory.sample(now, freed_by_us)?;
        let mut sampled = 0;
        while sampled < MIN_SAMPLED || self.budget.allows() {
            match self.sample_next_due(now, changes) {
                0 => break,
                n => sampled += n,
            }
        }
        self.sample_unmanaged(now, changes);
        Ok(())
    }

    /// Samples the unmanaged tenant: page-ins of the host that belong to no tenant. Tenants' page-ins since their last samples
    /// would count as its growth. So if it seems to have grown, the tenants are sampled first, as far as the budget allows.
    fn sample_unmanaged(&mut self, now: Instant, changes: &mut Changes) {
        let top_level_changed = self.cgroups.take_top_level_changed();
        let host = self.memory.paged_in();
        let noise = self.memory.memory(now).total / 1024;
        let mut paged_in = host.saturating_sub(self.tenants_paged_in());
        if !top_level_changed && self.unmanaged.has_grown(paged_in, noise) {
            let top_level = self.cgroups.top_level().to_vec();
            for (sampled, id) in top_level.into_iter().enumerate() {
                if sampled >= MIN_SAMPLED && !self.budget.allows() {
                    return;
                }
                self.sample_one(id, now, changes);
            }
            paged_in = host.saturating_sub(self.tenants_paged_in());
        }
        self.unmanaged
            .record(paged_in, top_level_changed, noise, now);
    }

    /// Page-ins of top-level cgroups as of their last samples, bytes: their file pages and the pages reclaimed from them.
    fn tenants_paged_in(&self) -> u64 {
        let ids = self.cgroups.top_level().iter();
        ids.filter_map(|id| self.cgroups.get(*id))
            .map(|node| node.memory.paged_in)
            .sum()
    }

    /// Samples one tenant whatever the budget: before pages are reclaimed from it.
    pub fn sample_one(&mut self, id: CgroupId, now: Instant, changes: &mut Changes) {
        let swap_on = self.memory.swap_on();
        let Some(node) = self.cgroups.get_mut(id) else {
            return;
        };
        node.used = self.reuse.working_set(id).map_or(0, |set| set.bytes);
        match node.memory.sample(&node.cgroup, swap_on, now) {
            Ok(()) => {
                node.held = node.memory.file + node.memory.slab;
                node.read_excluded();
            }
            Err(error) if error.is_gone() => self.cgroups.remove(id, changes),
            Err(_) => {}
        }
    }

    /// Records a tenant's memory counters that were read elsewhere.
    pub fn record_memory(&mut self, id: CgroupId, counters: &MemoryCounters, now: Instant) {
        if let Some(node) = self.cgroups.get_mut(id) {
            node.memory.record(counters, now);
            node.held = node.memory.file + node.memory.slab;
        }
    }

    fn schedule(&mut self, changes: &Changes, now: Instant) {
        for id in &changes.added {
            self.due.put(*id, now);
        }
    }

    /// Samples the tenant that has been due for longest. Returns the number of sampled cgroups: 0 if none is due.
    fn sample_next_due(&mut self, now: Instant, changes: &mut Changes) -> usize {
        let Some(id) = self.due.take(now) else {
            return 0;
        };
        self.sample_one(id, now, changes);
        self.cgroups.check_delegation(id, now, changes);
        let Some(node) = self.cgroups.get(id) else {
            return 1;
        };
        self.due.put(id, node.memory.due(now));
        let (busy, parent) = (node.memory.is_busy(), node.parent);
        1 + parent
            .filter(|_| busy)
            .map_or(0, |parent| self.sample_ancestors(parent, now, changes))
    }

    /// Samples `id` and its ancestors, up to the first with a current sample. A cgroup's page-ins count for all its ancestors.
    /// Otherwise the difference between the two would show pages that do not exist. Returns the number of samples.
    fn sample_ancestors(&mut self, id: CgroupId, now: Instant, changes: &mut Changes) -> usize {
        let mut sampled = 0;
        let mut at = Some(id);
        while let Some(node) = at.and_then(|id| self.cgroups.get(id)) {
            if node.memory.age(now).is_some_and(|age| age < CURRENT) {
                break;
            }
            let id = node.cgroup.id();
            at = node.parent;
            self.sample_one(id, now, changes);
            sampled += 1;
        }
        sampled
    }
}

// The LRU and the disks' I/O schedulers, which an operator can switch while the agent runs.

/// The period of reading the switches.
const PERIOD: Duration = Duration::from_secs(5);

/// Reads the switches: the LRU, and the disks' I/O schedulers.
#[derive(Debug)]
pub struct Switches {
    sys: PathBuf,
    read_at: Instant,
}

impl Switches {
    /// The switches were read at `now`, from the sysfs at `sys`.
    #[must_use]
    pub fn new(sys: &Path, now: Instant) -> Self {
        Self {
            sys: sys.to_owned(),
            read_at: now,
        }
    }

    /// The current features, if any has changed. Those that cannot be read stay as they were.
    pub fn poll(&mut self, features: ReclaimFeatures, now: Instant) -> Option<ReclaimFeatures> {
        if now.saturating_duration_since(self.read_at) < PERIOD {
            return None;
        }
        self.read_at = now;
        let mut found = features;
        if let Ok(Some(bits)) = lru_gen::enabled(&self.sys) {
            found.multi_gen = bits & 1 == 1;
        }
        if let Ok(disks) = bfq_disks(&self.sys.join("block")) {
            found.bfq = !disks.is_empty();
        }
        if found.multi_gen != features.multi_gen {
            found.lru_gen = found.multi_gen && lru_gen_usable();
        }
        (found != features).then_some(found)
    }
}

impl Monitor {
    /// Adopts other features.
    pub fn set_features(&mut self, features: ReclaimFeatures, changes: &mut Changes) {
        self.features = features;
        self.unmanaged.set_features(&features);
        self.cgroups.set_bfq(features.bfq, changes);
    }
}
