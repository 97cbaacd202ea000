//! Decides how much of each pool's pages is offered, and when the probe is detached.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use justitia_guest_protocol::puts::{DEFAULT_POOL, PoolRow};
use justitia_kernel::cgroup::{Cgroup, CgroupId};
use justitia_kernel::probes::EvictionProbe;
use justitia_kernel::proc::ProcFs;

use super::acceptance::NOTHING;
use super::costs::Costs;
use super::reuse::{Figures, OfferRate, Terms, decide};
use crate::pools::cgroups::Cgroups;
use crate::pools::plan::{Pool, known};

/// The most container cgroups in the kernel's map, which has room for more. Further cgroups are offered like those of no
/// container.
const MAX_CGROUPS: usize = 1000;

/// A pool's measurements and plan.
#[derive(Clone, Copy, Debug)]
struct Known {
    worth: OfferRate,
    accepted: u64,
    /// When a block was last accepted, or a pause ended.
    active: Duration,
}

/// The offers of the pools.
#[derive(Debug, Default)]
pub(crate) struct Offers {
    pools: BTreeMap<u32, Known>,
    rest: Rest,
    /// The shifts of cgroups in the kernel's map.
    applied: BTreeMap<CgroupId, u32>,
}

/// The basis of decisions besides the pools' rows.
pub(crate) struct Guest<'a> {
    pub(crate) cgroups: &'a Cgroups,
    /// Pools that the host refuses, with their offer: one block in `2^shift`.
    pub(crate) refused: &'a BTreeMap<u32, u32>,
    /// Its memory, in blocks.
    pub(crate) memory: u64,
    pub(crate) costs: &'a Costs,
    /// The time, by any clock.
    pub(crate) now: Duration,
}

impl Offers {
    /// Decides how much of each pool's pages is offered, and tells the kernel. `pools` are those of cgroups, `numbers` the pools
    /// of all cgroups.
    pub(crate) fn decide(
        &mut self,
        rows: &[PoolRow],
        guest: &Guest<'_>,
        pools: &BTreeMap<CgroupId, Pool>,
        numbers: &BTreeMap<CgroupId, u32>,
        probe: &EvictionProbe,
    ) {
        let owners: BTreeMap<u32, CgroupId> =
            pools.iter().map(|(id, pool)| (pool.number, *id)).collect();
        let before = std::mem::take(&mut self.pools);
        let machine = Reclaim::of_machine();
        for row in rows {
            let cgroup = owners.get(&row.number).map(|id| guest.cgroups.cgroup(*id));
            let reclaim = cgroup.map_or(machine, |cgroup| {
                cgroup.map(Reclaim::of_cgroup).unwrap_or_default()
            });
            let known = follow(before.get(&row.number), row, reclaim, guest);
            self.pools.insert(row.number, known);
        }
        let states = self.pools.values().map(|known| PoolState {
            paused: known.worth.in_kernel() == NOTHING,
            active: known.active,
        });
        let rest = decide_rest(self.rest, states, guest.now);
        if rest.detached {
            self.detach(rest, probe);
        }
        let owners = pools.keys().copied().collect();
        let shift = |number| self.shift(number, guest.refused);
        let others = (EvictionProbe::OTHER_CGROUPS, shift(DEFAULT_POOL));
        let of = known(numbers, &owners, MAX_CGROUPS).into_iter();
        let of = of.map(|(id, number)| (id, shift(number)));
        self.apply(std::iter::once(others).chain(of).collect(), probe);
        if !rest.detached {
            self.attach(rest, probe);
        }
    }

    /// How much of a pool's pages is offered, by their worth and by the host's refusals.
    fn shift(&self, number: u32, refused: &BTreeMap<u32, u32>) -> u32 {
        let known = self.pools.get(&number);
        let worth = known.map_or(0, |known| known.worth.in_kernel());
        worth.max(refused.get(&number).copied().unwrap_or(0))
    }

    fn detach(&mut self, rest: Rest, probe: &EvictionProbe) {
        if !self.rest.detached {
            tracing::info!("no evicted page is worth offering: the probe is detached");
            probe.detach();
        }
        self.rest = rest;
    }

    fn attach(&mut self, rest: Rest, probe: &EvictionProbe) {
        if self.rest.detached
            && let Err(error) = probe.attach_again()
        {
            tracing::warn!(%error, "the probe stays detached for now");
            return;
        }
        self.rest = rest;
    }

    /// Tells the kernel the changed offers of cgroups' pages.
    fn apply(&mut self, wanted: BTreeMap<CgroupId, u32>, probe: &EvictionProbe) {
        let ended = self.applied.keys().filter(|id| !wanted.contains_key(id));
        let changed = wanted
            .iter()
            .filter(|(id, shift)| self.applied.get(id) != Some(shift));
        let changed = changed.map(|(id, shift)| (*id, Some(*shift)));
        for (cgroup, shift) in ended.map(|id| (*id, None)).chain(changed) {
            if let Err(error) = probe.offer_of_cgroup(cgroup, shift) {
                tracing::warn!(%error, "offers stay as they were");
            }
        }
        self.applied = wanted;
    }

    /// Offers everything.
    pub(crate) fn reset(&mut self, probe: &EvictionProbe) {
        self.pools.clear();
        self.apply([(EvictionProbe::OTHER_CGROUPS, 0)].into(), probe);
        self.attach(Rest::default(), probe);
    }

    /// The number of pools that are not offered in full.
    pub(crate) fn limited(&self) -> usize {
        let limited = |known: &&Known| known.worth.in_kernel() > 0;
        self.pools.values().filter(limited).count()
    }

    /// Whether the probe is detached.
    pub(crate) const fn is_detached(&self) -> bool {
        self.rest.detached
    }
}

fn follow(before: Option<&Known>, row: &PoolRow, reclaim: Reclaim, guest: &Guest<'_>) -> Known {
    let figures = Figures {
        accepted: row.accepted,
        hits: row.taken.unwrap_or(row.hits),
        lost: row.evictions.saturating_add(row.invalidations),
        reclaimed: reclaim.reclaimed,
        refaults: reclaim.refaults,
    };
    let at = Terms {
        memory: guest.memory,
        price: guest.costs.price(),
        measured: guest.costs.measured(),
        clock: guest.now,
    };
    let Some(before) = before else {
        return Known {
            worth: OfferRate::of_new(figures, &at),
            accepted: row.accepted,
            active: guest.now,
        };
    };
    let worth = decide(before.worth, figures, &at);
    let (was, is) = (before.worth.in_kernel(), worth.in_kernel());
    if was != is {
        let pool = row.number;
        match is {
            NOTHING => tracing::info!(pool, "nothing is offered of a pool's pages for a while"),
            _ => tracing::info!(
                pool,
                one_in = 1_u64 << is,
                "a pool's pages are offered at another rate"
            ),
        }
    }
    let is_active = row.accepted > before.accepted || was == NOTHING && is != NOTHING;
    Known {
        worth,
        accepted: row.accepted,
        active: if is_active { guest.now } else { before.active },
    }
}

// The probe is detached while no pool's pages are worth their cost, and no other pool needs it.

/// A pool without pages for this long does not keep the probe.
const IDLE: Duration = Duration::from_secs(60);
/// Such a pool may begin to evict: the probe is attached this often to look.
const LOOK_AGAIN: Duration = Duration::from_secs(300);

/// The state of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PoolState {
    /// Whether nothing of it is offered.
    pub(crate) paused: bool,
    /// When a block of it was last accepted, or a pause ended; by any clock.
    pub(crate) active: Duration,
}

/// Whether the probe is detached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Rest {
    pub(crate) detached: bool,
    /// When that last changed.
    since: Duration,
}

/// Whether the probe is detached next, from the pools' states.
fn decide_rest(before: Rest, pools: impl IntoIterator<Item = PoolState>, now: Duration) -> Rest {
    let (mut paused, mut others, mut wanted) = (false, false, false);
    for pool in pools {
        paused |= pool.paused;
        others |= !pool.paused;
        wanted |= !pool.paused
            && if before.detached {
                pool.active > before.since
            } else {
                now.saturating_sub(pool.active.max(before.since)) < IDLE
            };
    }
    let look = before.detached && others && now.saturating_sub(before.since) >= LOOK_AGAIN;
    let detached = paused && !wanted && !look;
    if detached == before.detached {
        before
    } else {
        Rest {
            detached,
            since: now,
        }
    }
}

// The guest's own kernel counts reclaimed pages and refaults: of all pages, offered or not, at no cost. It remembers evicted
// pages up to some times the memory (`mm/workingset.c`). With the multi-generational LRU, Linux 6.1 counts only those that come
// back soon.

/// Pages since the start, or since the cgroup was made; 0 where the kernel does not say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Reclaim {
    /// Reclaimed from page cache (of a cgroup also from anonymous memory).
    pub(crate) reclaimed: u64,
    /// Of these, refaults of file pages.
    pub(crate) refaults: u64,
}

impl Reclaim {
    /// Of the whole machine.
    pub(crate) fn of_machine() -> Self {
        let read = ProcFs::open(Path::new("/proc")).and_then(|proc| proc.vmstat());
        read.map_or_else(
            |_| Self::default(),
            |stat| Self {
                reclaimed: stat.pgsteal_file,
                refaults: stat.workingset_refault_file,
            },
        )
    }

    /// Of a cgroup and its descendants.
    pub(crate) fn of_cgroup(cgroup: &Cgroup) -> Self {
        cgroup.memory_stat().map_or_else(
            |_| Self::default(),
            |stat| Self {
                reclaimed: stat.pgsteal,
                refaults: stat.workingset_refault_file,
            },
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    const fn rest((detached, since): (bool, u64)) -> Rest {
        let since = at(since);
        Rest { detached, since }
    }

    #[test]
    fn the_probe_is_detached_while_nobody_needs_it() {
        // Whether it is detached, and since when; of each pool, whether it pauses, and when it was active.
        for (before, pools, now, expected) in [
            // It is needed, or nothing says that it is not.
            ((false, 0), &[][..], 1000, (false, 0)),
            ((false, 0), &[(false, 0)], 1000, (false, 0)),
            ((false, 0), &[(true, 0), (false, 990)], 1000, (false, 0)),
            // All pause, or have been idle.
            ((false, 0), &[(true, 990)], 1000, (true, 1000)),
            ((false, 0), &[(true, 990), (false, 940)], 1000, (true, 1000)),
            // Attached a moment ago, to look.
            ((false, 990), &[(true, 0), (false, 0)], 1000, (false, 990)),
            // For as long as all pause.
            ((true, 10), &[(true, 0)], 5000, (true, 10)),
            ((true, 900), &[(true, 0), (false, 800)], 1000, (true, 900)),
            // A pause ends; a pool that was idle is looked for; the pool that paused is gone.
            (
                (true, 900),
                &[(true, 0), (false, 1000)],
                1000,
                (false, 1000),
            ),
            ((true, 700), &[(true, 0), (false, 0)], 1000, (false, 1000)),
            ((true, 900), &[(false, 0)], 1000, (false, 1000)),
        ] {
            let states = pools.iter().map(|&(paused, active)| {
                let active = at(active);
                PoolState { paused, active }
            });
            let decided = decide_rest(rest(before), states, at(now));
            assert_eq!(decided, rest(expected), "{before:?} {pools:?}");
        }
    }
}
