//! Of which tenants the accesses are sampled, and what follows for each.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, HashSet};
use std::time::{Duration, Instant};

use justitia_kernel::cgroup::CgroupId;
use justitia_kernel::probes::IoProbes;
use justitia_share::curve::ReuseTimes;

use super::cgroup_tree::CgroupTree;
use super::cpu_budget::thread_cpu;
use super::reuse::{LIVE, Reuse, ReuseCounts};
use crate::model::WorkingSet;

/// Which tenants are sampled is looked over this often.
const CHOOSE: Duration = Duration::from_secs(1);
/// A tenant that holds less file pages has no need of it, bytes.
const LEAST: u64 = 1 << 20;
/// A tenant's counts are read this often while it accesses its cache …
const SHORTEST: Duration = Duration::from_secs(1);
/// … and ever less often down to this while it does not: what it used fades.
const LONGEST: Duration = Duration::from_secs(10);
/// The part of one CPU that this may take; where it takes more, it is done less often.
const MOST: f64 = 0.005;
/// So much of it at once: the loop has other things to do.
const AT_ONCE: Duration = Duration::from_millis(1);

#[derive(Debug)]
struct Watched {
    curve: usize,
    reuse: Reuse,
    visits: u64,
    period: Duration,
}

/// The tenants whose accesses are sampled.
#[derive(Debug, Default)]
pub struct ReuseSampler {
    of: HashMap<CgroupId, Watched>,
    free: Vec<usize>,
    /// How many curves were ever made use of.
    made: usize,
    due: BinaryHeap<Reverse<(Instant, CgroupId)>>,
    chosen: Option<Instant>,
    resumes: Option<Instant>,
    refused: Option<String>,
}

impl ReuseSampler {
    /// Goes on, as far as its cost allows. `capacity` is what can be divided, bytes.
    pub fn turn(&mut self, eyes: &mut IoProbes, cgroups: &CgroupTree, capacity: u64, now: Instant) {
        if self.resumes.is_some_and(|at| at > now) {
            return;
        }
        let begun = thread_cpu();
        let spent = || thread_cpu().saturating_sub(begun);
        if self.chosen.is_none_or(|at| now - at >= CHOOSE) {
            self.chosen = Some(now);
            self.choose(eyes, cgroups, now);
        }
        while let Some(&Reverse((at, id))) = self.due.peek() {
            if at > now || spent() >= AT_ONCE {
                break;
            }
            self.due.pop();
            if let Some(period) = self.read(eyes, cgroups, id, capacity, now) {
                self.due.push(Reverse((now + period, id)));
            }
        }
        self.resumes = Some(now + spent().div_f64(MOST));
    }

    /// What a tenant's accesses say; `None` where they are not sampled.
    #[must_use]
    pub fn working_set(&self, id: CgroupId) -> Option<WorkingSet> {
        self.of.get(&id).map(|watched| watched.reuse.working_set())
    }

    /// A tenant's accesses, where they are sampled.
    #[must_use]
    pub fn get(&self, id: CgroupId) -> Option<&Reuse> {
        self.of.get(&id).map(|watched| &watched.reuse)
    }

    /// Why accesses are not sampled, if so.
    #[must_use]
    pub fn refused(&self) -> Option<&str> {
        self.refused.as_deref()
    }

    fn choose(&mut self, eyes: &mut IoProbes, cgroups: &CgroupTree, now: Instant) {
        let tenants = cgroups
            .preorder()
            .into_iter()
            .filter_map(|id| cgroups.get(id));
        let leaves = tenants.filter(|node| node.children.is_empty() && node.populated);
        let holders: Vec<(CgroupId, u64)> = leaves
            .map(|node| (node.cgroup.id(), node.memory.file))
            .collect();
        let sampled = self.of.keys().copied().collect();
        let change = choose(&holders, &sampled, eyes.curve_count());
        let mut changes = Vec::new();
        for id in change.stop {
            if let Some(watched) = self.of.remove(&id) {
                self.free.push(watched.curve);
                changes.push((id, None));
            }
        }
        for id in change.start {
            let curve = self.free.pop().unwrap_or(self.made);
            self.made = self.made.max(curve + 1);
            if let Err(error) = eyes.clear_reuse(curve) {
                self.refused = Some(error.to_string());
            }
            // What its own counters tell from before it was sampled.
            let visits = visits(eyes, id);
            let reuse = Reuse::new(now, visits);
            changes.push((id, Some((curve, reuse.shift()))));
            let watched = Watched {
                curve,
                reuse,
                visits,
                period: SHORTEST,
            };
            self.of.insert(id, watched);
            self.due.push(Reverse((now + SHORTEST, id)));
        }
        self.tell(eyes, &changes);
    }

    fn tell(&mut self, eyes: &mut IoProbes, changes: &[(CgroupId, Option<(usize, u32)>)]) {
        if changes.is_empty() {
            return;
        }
        self.refused = eyes
            .sample_reuse(changes)
            .err()
            .map(|error| error.to_string());
    }

    /// Reads one tenant's counts; says when to do so again, unless it is not sampled any more.
    fn read(
        &mut self,
        eyes: &mut IoProbes,
        cgroups: &CgroupTree,
        id: CgroupId,
        capacity: u64,
        now: Instant,
    ) -> Option<Duration> {
        let watched = self.of.get_mut(&id)?;
        let whole = cgroups
            .get(id)
            .is_some_and(|node| !node.has_unmanaged_children());
        let counted = counted(eyes, id, watched.curve, whole)?;
        let quiet = counted.reuse.visits == watched.visits;
        watched.visits = counted.reuse.visits;
        watched.period = if quiet {
            (watched.period * 3 / 2).min(LONGEST)
        } else {
            SHORTEST
        };
        let shift = watched.reuse.shift();
        watched.reuse.take(counted, capacity, now);
        let (curve, period, next) = (watched.curve, watched.period, watched.reuse.shift());
        if next != shift {
            self.tell(eyes, &[(id, Some((curve, next)))]);
        }
        Some(period)
    }
}

fn visits(eyes: &IoProbes, id: CgroupId) -> u64 {
    eyes.counters_of(id)
        .map_or(0, |counters| counters.block_accesses)
}

/// What the probes have counted. `whole`: whether the tenant has no cgroups below it that are not told apart; those count
/// for its curve, but not for its own counters.
fn counted(eyes: &IoProbes, id: CgroupId, curve: usize, whole: bool) -> Option<ReuseCounts> {
    let reuse = eyes.reuse(curve).ok()?;
    let mut times = ReuseTimes {
        cold: reuse.cold(),
        ..ReuseTimes::default()
    };
    for (sum, count) in times.times.iter_mut().zip(reuse.times()) {
        *sum = count;
    }
    times.visits = if whole {
        visits(eyes, id)
    } else {
        times.cold + times.times.iter().sum::<u64>()
    };
    Some(ReuseCounts {
        reuse: times,
        evicted: reuse.evicted(),
        live: reuse.live(LIVE),
    })
}

/// What to change.
#[derive(Debug, Default, PartialEq, Eq)]
struct Change {
    stop: Vec<CgroupId>,
    start: Vec<CgroupId>,
}

/// Who is sampled: those that hold most, of `holders` with what they hold, as long as there are curves. One that is
/// sampled gives its curve up only for another that holds twice as much.
fn choose(holders: &[(CgroupId, u64)], sampled: &HashSet<CgroupId>, curves: usize) -> Change {
    let mut ranked: Vec<(u64, CgroupId)> = holders
        .iter()
        .map(|&(id, file)| {
            let sampled = sampled.contains(&id);
            (
                if sampled {
                    file.saturating_mul(2).max(1)
                } else {
                    file
                },
                id,
            )
        })
        .filter(|(rank, id)| *rank >= LEAST || sampled.contains(id))
        .collect();
    ranked.sort_unstable_by_key(|(rank, id)| (Reverse(*rank), id.0));
    ranked.truncate(curves);
    let chosen: HashSet<CgroupId> = ranked.iter().map(|(_, id)| *id).collect();
    let mut stop: Vec<CgroupId> = sampled.difference(&chosen).copied().collect();
    stop.sort_unstable_by_key(|id| id.0);
    let start = ranked.into_iter().map(|(_, id)| id);
    Change {
        stop,
        start: start.filter(|id| !sampled.contains(id)).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn ids(ids: &[u64]) -> Vec<CgroupId> {
        ids.iter().map(|id| CgroupId(*id)).collect()
    }

    #[test]
    fn those_that_hold_most_are_sampled() {
        // What each holds, MiB; who is sampled; how many curves; who stops; who starts.
        type Case<'a> = (&'a [u64], &'a [u64], usize, &'a [u64], &'a [u64]);
        let cases: [Case<'_>; 6] = [
            (&[100, 50, 0], &[], 8, &[], &[0, 1]),
            (&[100, 50, 70], &[], 2, &[], &[0, 2]),
            // What has become small keeps its curve while there are enough; gone is gone.
            (&[0, 50], &[0, 7], 8, &[7], &[1]),
            // Twice as much it takes.
            (&[40, 70], &[0], 1, &[], &[]),
            (&[40, 90], &[0], 1, &[0], &[1]),
            // Thousands that hold little cost one that holds much nothing.
            (&[300, 2, 2, 2, 2], &[1, 2, 3], 3, &[3], &[0]),
        ];
        for (holds, sampled, curves, stop, start) in cases {
            let holders: Vec<_> = (0..)
                .map(CgroupId)
                .zip(holds.iter().map(|h| h * MIB))
                .collect();
            let sampled = ids(sampled).into_iter().collect();
            let change = choose(&holders, &sampled, curves);
            let expected = Change {
                stop: ids(stop),
                start: ids(start),
            };
            assert_eq!(change, expected, "{holds:?}");
        }
    }
}
