//! Observing: from the kernel's counters to a snapshot, at a bounded cost.

pub mod device;

mod budget;
mod flow;
mod losses;
mod meter;
mod mirror;
mod outside;
mod room;
mod sight;

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::{Duration, Instant};

use justitia_kernel::Result;
use justitia_kernel::cgroup::{CgroupFs, CgroupId};
use justitia_kernel::memory::MemoryStat;
use justitia_kernel::proc::ProcFs;

pub use budget::{Budget, process_cpu, thread_cpu};
pub use flow::{Flows, Rates, WINDOW};
pub use mirror::{Changes, Mirror, Node, low_of};
pub use outside::{Abilities, Outside, lru_gen_usable};
pub use room::Room;
pub use sight::Sight;

use crate::config::Config;
use crate::plan::{Key, Snapshot, Spared, Tenant};

/// So many tenants are looked at whatever the budget says: a plan needs something to go by.
const ALWAYS: usize = 8;
/// Without events the tree is rescanned this often.
const RESCAN: Duration = Duration::from_secs(5);
/// After events were lost the tree is rescanned, but no more often than this: who makes cgroups fast enough can lose
/// them again and again.
const RESCAN_LOST: Duration = Duration::from_secs(3);

/// Watches the tree and the memory.
#[derive(Debug)]
pub struct Observer {
    /// The tree.
    pub mirror: Mirror,
    /// The memory.
    pub room: Room,
    /// What is outside any managed cgroup.
    pub outside: Outside,
    /// What applications get.
    pub sight: Sight,
    /// What looking may cost.
    pub budget: Budget,
    abilities: Abilities,
    due: BinaryHeap<Reverse<(Instant, CgroupId)>>,
    rescanned: Instant,
}

impl Observer {
    /// Looks at the whole tree once.
    ///
    /// # Errors
    /// If `/proc` cannot be read.
    pub fn new(
        fs: &CgroupFs,
        proc: ProcFs,
        abilities: Abilities,
        config: &Config,
        sight: Sight,
        now: Instant,
    ) -> Result<Self> {
        let mut observer = Self {
            mirror: Mirror::new(fs, abilities.bfq),
            room: Room::new(proc),
            outside: Outside::new(fs.root().clone(), &abilities),
            sight,
            budget: Budget::new(config.cpu_budget),
            abilities,
            due: BinaryHeap::new(),
            rescanned: now,
        };
        observer.room.refresh(now, 0)?;
        let mut changes = Changes::default();
        observer.mirror.rescan(config, now, &mut changes);
        observer.expect(&changes, now);
        let mut gone = Changes::default();
        while observer.look_at_next(now, &mut gone) {}
        observer.budget.forgive();
        Ok(observer)
    }

    /// Glances at the free memory, and takes the events that have come. Cheap; for every turn.
    pub fn glance(&mut self, config: &Config, now: Instant) -> Changes {
        self.room.glance(now);
        let changes = self.follow(config, now);
        self.sight.sample(&self.mirror, now);
        changes
    }

    /// Takes the events that have come.
    pub fn follow(&mut self, config: &Config, now: Instant) -> Changes {
        let mut changes = self.mirror.follow(config, now);
        let since = now.saturating_duration_since(self.rescanned);
        if (self.mirror.lost() && since >= RESCAN_LOST)
            || (self.mirror.blind().is_some() && since >= RESCAN)
        {
            self.mirror.rescan(config, now, &mut changes);
            self.rescanned = now;
        }
        self.expect(&changes, now);
        changes
    }

    /// Reads the probes now, for who asks: between two samples there may be seconds, as far as their cost allows.
    pub fn catch_up(&mut self, now: Instant) {
        self.sight.catch_up(&self.mirror, now);
    }

    /// Looks at the memory's counters, and at tenants as far as they are due and the budget allows, at a few
    /// always.
    ///
    /// # Errors
    /// If `/proc` cannot be read.
    pub fn look(&mut self, now: Instant, freed_by_us: u64, changes: &mut Changes) -> Result<()> {
        self.room.refresh(now, freed_by_us)?;
        let mut looked = 0;
        while (looked < ALWAYS || self.budget.allows()) && self.look_at_next(now, changes) {
            looked += 1;
        }
        Ok(())
    }

    /// Looks at one tenant now, whatever it costs: before something is taken from it.
    pub fn look_at(&mut self, id: CgroupId, now: Instant, changes: &mut Changes) {
        if let Some(node) = self.mirror.get_mut(id)
            && let Err(error) = node.meter.read(&node.cgroup, now)
            && error.is_gone()
        {
            self.mirror.found_gone(id, changes);
        }
    }

    /// Takes a tenant's counters that were read elsewhere.
    pub fn take(&mut self, id: CgroupId, stat: &MemoryStat, now: Instant) {
        if let Some(node) = self.mirror.get_mut(id) {
            node.meter.take(stat, now);
        }
    }

    fn expect(&mut self, changes: &Changes, now: Instant) {
        self.due
            .extend(changes.come.iter().map(|id| Reverse((now, *id))));
    }

    /// Looks at the tenant that has been due for longest, if any is.
    fn look_at_next(&mut self, now: Instant, changes: &mut Changes) -> bool {
        let Some(&Reverse((at, id))) = self.due.peek() else {
            return false;
        };
        if at > now {
            return false;
        }
        self.due.pop();
        // An inner node's pages are its leaves'.
        let leaf = self.mirror.get(id).is_some_and(|n| n.children.is_empty());
        if leaf {
            self.look_at(id, now, changes);
        }
        if let Some(node) = self.mirror.get(id) {
            self.due.push(Reverse((node.meter.due(now), id)));
        }
        true
    }

    /// What is known now. `spared` says why nothing may be taken from a tenant, if so.
    pub fn snapshot(
        &mut self,
        config: &Config,
        now: Instant,
        coming: u64,
        spared: impl Fn(Key) -> Option<Spared>,
    ) -> Snapshot {
        let order = self.mirror.order();
        let mut places = std::collections::HashMap::with_capacity(order.len());
        let mut tenants = Vec::with_capacity(order.len() + 1);
        for id in order {
            let Some(node) = self.mirror.get(id) else {
                continue;
            };
            places.insert(id, tenants.len());
            let key = Key::Cgroup(id);
            let meter = &node.meter;
            // Only leaves are looked at; the others are the sums of theirs.
            let leaf = node.children.is_empty();
            let own = |amount: u64| if leaf { amount } else { 0 };
            let unable = self.abilities.spares(meter.anon, self.room.swap_on());
            tenants.push(Tenant {
                key,
                parent: node.parent.and_then(|p| places.get(&p).copied()),
                weight: self.mirror.weight(node).0,
                floor: 0,
                wish: 0,
                file: own(meter.file),
                other: own(meter.other),
                stuck: own(meter.stuck),
                leaf,
                populated: node.populated,
                wants_more: meter.wants_more(now),
                idle_for: meter.idle_for(now),
                spared: unable.or_else(|| spared(key)),
            });
        }
        self.sum_up(&mut tenants);
        let spared = spared(Key::Outside);
        let outside = self
            .outside
            .tenant(&self.room, &tenants, config.outside, now, spared);
        tenants.push(outside);
        let memory = crate::plan::Memory {
            coming,
            ..self.room.memory()
        };
        Snapshot { memory, tenants }
    }

    /// What inner nodes hold, and then everybody's floors, which depend on it.
    fn sum_up(&self, tenants: &mut [Tenant]) {
        for i in (0..tenants.len()).rev() {
            let (file, other, stuck) = (tenants[i].file, tenants[i].other, tenants[i].stuck);
            if let Some(parent) = tenants[i].parent {
                let parent = &mut tenants[parent];
                parent.file = parent.file.saturating_add(file);
                parent.other = parent.other.saturating_add(other);
                parent.stuck = parent.stuck.saturating_add(stuck);
            }
            if let Key::Cgroup(id) = tenants[i].key
                && let Some(node) = self.mirror.get(id)
            {
                (tenants[i].floor, tenants[i].wish) = node.floors(other);
            }
        }
    }
}
