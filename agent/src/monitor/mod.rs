//! Observing: from the kernel's counters to a snapshot, at a bounded cost.

pub mod device;

mod budget;
mod curves;
mod flow;
mod losses;
mod meter;
mod mirror;
mod outside;
mod reuse;
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
pub use curves::Curves;
pub use flow::{Flows, Rates, WINDOW};
pub use mirror::{Changes, Mirror, Node, low_of};
pub use outside::{Abilities, Outside, OutsideMeans, lru_gen_usable};
pub use reuse::{Counted, LIVE, Reuse};
pub use room::Room;
pub use sight::Sight;

use crate::config::Config;
use crate::enforce::worker::own::MOST_CHILDREN;
use crate::plan::{Key, Snapshot, Spared, Tenant};

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
pub struct Observer {
    /// The tree.
    pub mirror: Mirror,
    /// The memory.
    pub room: Room,
    /// What is outside any managed cgroup.
    pub outside: Outside,
    /// What applications get.
    pub sight: Sight,
    /// What tenants use of their caches.
    pub curves: Curves,
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
            outside: Outside::new(fs.root().clone(), &abilities, now),
            sight,
            curves: Curves::default(),
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
        while observer.look_at_next(now, &mut gone) > 0 {}
        observer.look_outside(now, &mut gone);
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

    /// Reads what tenants use of their caches, as far as that is due. `capacity` is what can be divided, bytes.
    pub fn follow_use(&mut self, capacity: u64, now: Instant) {
        self.sight
            .follow_use(&mut self.curves, &self.mirror, capacity, now);
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
        while looked < ALWAYS || self.budget.allows() {
            match self.look_at_next(now, changes) {
                0 => break,
                n => looked += n,
            }
        }
        self.look_outside(now, changes);
        Ok(())
    }

    /// Looks at what is outside. What tenants have taken in since they were looked at is not taken for its growth: where
    /// it seems to have grown they are looked at first, as far as the budget allows.
    fn look_outside(&mut self, now: Instant, changes: &mut Changes) {
        let top_changed = self.mirror.take_top_changed();
        let Some(all) = self.outside.read() else {
            return;
        };
        let noise = self.room.memory().total / 1024;
        let mut taken_in = all.saturating_sub(self.mirror.taken_in());
        if !top_changed && self.outside.seems_to_grow(taken_in, noise) {
            let top = self.mirror.top().to_vec();
            for (looked, id) in top.into_iter().enumerate() {
                if looked >= ALWAYS && !self.budget.allows() {
                    return;
                }
                self.look_at(id, now, changes);
            }
            taken_in = all.saturating_sub(self.mirror.taken_in());
        }
        self.outside.take(taken_in, top_changed, noise, now);
    }

    /// Looks at one tenant now, whatever it costs: before something is taken from it.
    pub fn look_at(&mut self, id: CgroupId, now: Instant, changes: &mut Changes) {
        if let Some(node) = self.mirror.get_mut(id)
            && let Err(error) = node.look(now)
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

    /// Looks at the tenant that has been due for longest, if any is. Says how many were looked at.
    fn look_at_next(&mut self, now: Instant, changes: &mut Changes) -> usize {
        let Some(&Reverse((at, id))) = self.due.peek() else {
            return 0;
        };
        if at > now {
            return 0;
        }
        self.due.pop();
        self.look_at(id, now, changes);
        self.mirror.inspect(id, now, changes);
        let Some(node) = self.mirror.get(id) else {
            return 1;
        };
        self.due.push(Reverse((node.meter.due(now), id)));
        let (busy, parent) = (node.meter.is_busy(), node.parent);
        1 + parent
            .filter(|_| busy)
            .map_or(0, |parent| self.look_above(parent, now, changes))
    }

    /// Looks at `id` and all above it, up to one that was looked at a moment ago: what a cgroup takes in counts for all
    /// above it, and would be taken for something else by who compares the two. Says how many were looked at.
    fn look_above(&mut self, id: CgroupId, now: Instant, changes: &mut Changes) -> usize {
        let mut looked = 0;
        let mut at = Some(id);
        while let Some(node) = at.and_then(|id| self.mirror.get(id)) {
            if node.meter.age(now).is_some_and(|age| age < MOMENT) {
                break;
            }
            let id = node.cgroup.id();
            at = node.parent;
            self.look_at(id, now, changes);
            looked += 1;
        }
        looked
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
            let leaf = node.children.is_empty();
            let unable = self.abilities.spares(meter.anon, self.room.swap_on());
            let crowded = node.children.len() > MOST_CHILDREN;
            let unable = unable.or_else(|| crowded.then_some(Spared::Crowded));
            tenants.push(Tenant {
                key,
                parent: node.parent.and_then(|p| places.get(&p).copied()),
                weight: self.mirror.weight(node).0,
                floor: 0,
                wish: 0,
                file: meter.file.saturating_sub(node.excluded_file),
                own: 0,
                residue: 0,
                unreachable: 0,
                other: meter.other,
                stuck: meter.stuck,
                leaf,
                populated: node.populated,
                wants_more: leaf && meter.wants_more(now),
                idle_for: if leaf {
                    meter.idle_for(now)
                } else {
                    Duration::ZERO
                },
                mapped: meter.mapped,
                seen: self
                    .curves
                    .seen(id)
                    .unwrap_or_else(|| meter.seen(self.abilities.multi_gen, now)),
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
            tenant.stuck = tenant.stuck.max(sum.stuck);
            tenant.own = tenant.file - sum.file;
            if !tenant.leaf {
                tenant.residue = tenant.own;
            }
            let mut others = sum.others;
            if let Key::Cgroup(id) = tenant.key
                && let Some(node) = self.mirror.get(id)
            {
                (tenant.floor, tenant.wish) = node.floors(tenant.other);
                others |= node.has_others();
            }
            if others {
                tenant.spared = tenant.spared.or(Some(Spared::Excluded));
            }
            if let Some(parent) = tenant.parent {
                let parent = &mut below[parent];
                parent.file = parent.file.saturating_add(tenant.file);
                parent.other = parent.other.saturating_add(tenant.other);
                parent.stuck = parent.stuck.saturating_add(tenant.stuck);
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
    stuck: u64,
    /// Whether any cgroup below is no tenant.
    others: bool,
}
