//! The tenants that use the disks. They are sampled each time. The others are checked in turns, as most of a thousand tenants
//! are inactive.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use justitia_kernel::cgroup::{Cgroup, CgroupId};
use justitia_kernel::io::{DevId, IoStat};

use super::tenant_io::{AppIo, AppIoSource, DiskActivity, TenantIo, TenantIoSampler};
use crate::page_cache::{CgroupTree, Node};

#[cfg(test)]
mod tests;

/// The period of checking inactive tenants.
const SEARCH_PERIOD: Duration = Duration::from_secs(1);
/// With up to this many tenants, inactive ones are checked each time.
const FEW_TENANTS: usize = 64;
/// A tenant without disk activity for this long is inactive.
const INACTIVE_AFTER: Duration = Duration::from_secs(10);
/// The probes miss some I/O, such as the writeback of mapped pages. So each search also reads the `io.stat` of some inactive
/// tenants, in turns: this many …
const IO_STATS: usize = 16;
/// … or this many without probes, or while disks transfer more than the active tenants account for …
const MAX_IO_STATS: usize = 640;
/// … and each at least once in this many searches.
const MAX_ROUNDS: usize = 240;
/// Active tenants should account for this fraction of disk transfers. The remainder may be the file system's own I/O.
const ATTRIBUTED: f64 = 0.9;
/// The probes are not read for a tenant with more cgroups than this.
const MAX_CGROUPS: usize = 32;

/// An inactive tenant.
#[derive(Debug, Default)]
struct Inactive {
    /// [`DiskActivity::total`] at its last check.
    disk_total: u64,
    /// Its last read `io.stat`.
    io: Option<Vec<(DevId, IoStat)>>,
}

/// The tenants by whether they use the disks.
#[derive(Debug, Default)]
pub struct ActiveSet {
    sampler: TenantIoSampler,
    /// When each was last active.
    active: BTreeMap<CgroupId, Instant>,
    inactive: HashMap<CgroupId, Inactive>,
    searched_at: Option<Instant>,
    /// The number of searches.
    round: usize,
    /// Whether disks transfer more than the active tenants account for.
    unattributed_io: bool,
}

impl ActiveSet {
    /// Samples the active tenants. Returns their I/O since the last call.
    pub fn sample(
        &mut self,
        cgroups: &CgroupTree,
        source: &impl AppIoSource,
        now: Instant,
    ) -> Vec<(CgroupId, TenantIo)> {
        let few = cgroups.len() <= FEW_TENANTS;
        let due = self.searched_at.is_none_or(|at| now - at >= SEARCH_PERIOD);
        if due {
            self.searched_at = Some(now);
            self.round = self.round.wrapping_add(1);
        }
        if few || due {
            self.find_newly_active(cgroups, source, (few, due), now);
        }
        let mut samples = Vec::new();
        let mut ended = Vec::new();
        for (id, active_at) in &mut self.active {
            let application = app_io(cgroups, source, *id, now);
            let sample =
                io_domain(cgroups, *id).map(|cgroup| self.sampler.sample(cgroup, application, now));
            match sample {
                Some(Ok(Some(io))) => {
                    if io.is_active() {
                        *active_at = now;
                    } else if now - *active_at >= INACTIVE_AFTER {
                        ended.push(*id);
                    }
                    samples.push((*id, io));
                }
                Some(Ok(None)) => {}
                Some(Err(error)) => {
                    tracing::trace!(%error, "a tenant's I/O cannot be read");
                    ended.push(*id);
                }
                None => ended.push(*id),
            }
        }
        for id in ended {
            self.becomes_inactive(id, cgroups, source);
        }
        samples
    }

    fn becomes_inactive(&mut self, id: CgroupId, cgroups: &CgroupTree, source: &impl AppIoSource) {
        self.active.remove(&id);
        let node = cgroups.get(id);
        let activity = node.and_then(|node| disk_activity(cgroups, source, node));
        let inactive = Inactive {
            disk_total: activity.map_or(0, |activity| activity.total),
            io: self.sampler.remove(id),
        };
        self.inactive.insert(id, inactive);
    }

    /// Searches for inactive tenants that have become active. `few`: whether there are few tenants. `due`: whether to read some
    /// `io.stat`.
    fn find_newly_active(
        &mut self,
        cgroups: &CgroupTree,
        source: &impl AppIoSource,
        (few, due): (bool, bool),
        now: Instant,
    ) {
        for (number, node) in cgroups.io_domains().enumerate() {
            let cgroup = &node.cgroup;
            let id = cgroup.id();
            if self.active.contains_key(&id) {
                continue;
            }
            let activity = disk_activity(cgroups, source, node);
            let io_stats = if activity.is_none() || self.unattributed_io {
                MAX_IO_STATS
            } else {
                IO_STATS
            };
            let rounds = cgroups.len().div_ceil(io_stats).clamp(1, MAX_ROUNDS);
            let read = due && number % rounds == self.round % rounds;
            let active = match activity {
                Some(activity) => {
                    self.becomes_active(id, activity) || (read && self.io_stat_moved(cgroup))
                }
                None => few || (read && self.io_stat_moved(cgroup)),
            };
            if active {
                self.inactive.remove(&id);
                self.active.insert(id, now);
            }
        }
    }

    /// Records the disks' transfers, and the part that the last sample accounts for, bytes per second. If that is much less,
    /// the search for other active tenants comes sooner.
    pub fn note_throughput(&mut self, transferred: f64, attributed: f64) {
        self.unattributed_io = attributed < ATTRIBUTED * transferred;
    }

    /// Whether the probes show that an inactive tenant has become active.
    fn becomes_active(&mut self, id: CgroupId, activity: DiskActivity) -> bool {
        match self.inactive.entry(id) {
            Entry::Occupied(mut entry) => {
                let before = std::mem::replace(&mut entry.get_mut().disk_total, activity.total);
                activity.total > before
            }
            Entry::Vacant(entry) => {
                entry.insert(Inactive {
                    disk_total: activity.total,
                    io: None,
                });
                activity.recent
            }
        }
    }

    /// Whether the `io.stat` of an inactive tenant has changed since it was last read.
    fn io_stat_moved(&mut self, cgroup: &Cgroup) -> bool {
        let Ok(io) = cgroup.io_stat() else {
            return false;
        };
        let inactive = self.inactive.entry(cgroup.id()).or_default();
        let moved = inactive.io.as_ref().is_some_and(|before| *before != io);
        inactive.io = Some(io);
        moved
    }

    /// Forgets a removed cgroup.
    pub fn remove(&mut self, id: CgroupId) {
        self.sampler.remove(id);
        self.active.remove(&id);
        self.inactive.remove(&id);
    }

    /// Forgets the last samples, as after a pause.
    pub fn reset(&mut self) {
        self.sampler.reset();
    }

    /// Sets the divided disks, and forgets the last samples.
    pub fn of_disks(&mut self, disks: Vec<DevId>) {
        self.sampler = TenantIoSampler::of(disks);
    }
}

/// The cgroup, if it is one of those among which disks are divided.
fn io_domain(cgroups: &CgroupTree, id: CgroupId) -> Option<&Cgroup> {
    let node = cgroups.get(id)?;
    cgroups.is_io_domain(node).then_some(&node.cgroup)
}

/// The disk activity of a cgroup and its descendants.
fn disk_activity(
    cgroups: &CgroupTree,
    source: &impl AppIoSource,
    node: &Node,
) -> Option<DiskActivity> {
    let id = node.cgroup.id();
    // Nearly all are leaves, and there may be thousands.
    if node.children.is_empty() {
        return source.disk_activity(id);
    }
    cgroups
        .subtree(id)
        .try_fold(DiskActivity::default(), |sum, id| {
            let activity = source.disk_activity(id)?;
            Some(DiskActivity {
                total: sum.total + activity.total,
                recent: sum.recent || activity.recent,
            })
        })
}

/// The I/O of the applications in a cgroup and its descendants. With many descendants, which a delegatee may have made, as of
/// the last reading of the probes: reading each would take long.
fn app_io(
    cgroups: &CgroupTree,
    source: &impl AppIoSource,
    id: CgroupId,
    now: Instant,
) -> Option<AppIo> {
    let many = cgroups.subtree(id).nth(MAX_CGROUPS).is_some();
    cgroups.subtree(id).try_fold(AppIo::default(), |sum, id| {
        let one = match many {
            true => source.app_io_lately(id, now)?,
            false => source.app_io(id)?,
        };
        Some(AppIo {
            bytes: sum.bytes.saturating_add(one.bytes),
            outstanding: sum.outstanding.saturating_add(one.outstanding),
            age: sum.age.max(one.age),
        })
    })
}
