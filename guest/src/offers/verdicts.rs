//! How much of file systems and pools is offered, by the verdicts on their blocks.
//!
//! Verdicts are counted for each pool on each file system: one container must not decide for its neighbours. A file system is
//! offered as much as its most accepted pool. A pool with fewer accepted blocks than its neighbours is offered less itself: by
//! the file system where most of its blocks are accepted.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use justitia_guest_protocol::puts::{DEFAULT_POOL, Tally, Verdict};
use justitia_kernel::probes::{Device, EvictionProbe};

use super::acceptance::{LEAST, Offer, decide};
use crate::batch::Origin;

/// The most pairs of file system and pool that are counted, more than a guest has. Others change nothing.
const MAX_ENTRIES: usize = 4096;

/// How long a pool that is fully accepted counts after its last block.
const REMEMBERED: Duration = Duration::from_secs(3600);

/// A file system, on a disk.
pub(crate) type Filesystem = (Device, Device);

/// Verdicts on a pool's blocks on a file system.
#[derive(Clone, Debug, Default)]
struct Seen {
    /// `None` before the first decision.
    offer: Option<Offer>,
    tally: Tally,
    /// Whether blocks came since the last decision.
    fresh: bool,
    last: Duration,
}

impl Seen {
    /// How much is offered: one block in `2^shift`.
    fn shift(&self) -> u32 {
        self.offer.unwrap_or_default().in_kernel()
    }

    /// Whether it counts for the others on its file system. Before its first decision only if most is accepted.
    fn counts(&self) -> bool {
        let accepted = self.tally.of(Verdict::Accepted);
        self.offer.is_some() || accepted * 2 > self.tally.total()
    }
}

/// Verdicts on all blocks.
#[derive(Clone, Debug, Default)]
pub(crate) struct VerdictsByPool(BTreeMap<(Filesystem, u32), Seen>);

impl VerdictsByPool {
    /// Counts a message's verdicts.
    pub(crate) fn add(&mut self, filesystem: Filesystem, pool: u32, verdicts: &Tally) {
        let key = (filesystem, pool);
        if self.0.len() < MAX_ENTRIES || self.0.contains_key(&key) {
            let seen = self.0.entry(key).or_default();
            seen.tally.add_all(verdicts);
            seen.fresh = true;
        }
    }

    /// Decides anew. `pools` are the existing ones besides the default pool; counts of others are forgotten. `changed` is called
    /// for each changed offer.
    pub(crate) fn decide(
        &mut self,
        pools: &BTreeSet<u32>,
        now: Duration,
        mut changed: impl FnMut(Filesystem, u32, &Offer),
    ) {
        for ((filesystem, pool), seen) in &mut self.0 {
            if std::mem::take(&mut seen.fresh) {
                seen.last = now;
            }
            let before = seen.offer.unwrap_or_default();
            let Some(after) = decide(before, &seen.tally, now) else {
                continue;
            };
            seen.tally = Tally::default();
            if after.in_kernel() != before.in_kernel() {
                changed(*filesystem, *pool, &after);
            }
            seen.offer = Some(after);
        }
        self.0.retain(|(_, pool), seen| {
            let lives = *pool == DEFAULT_POOL || pools.contains(pool);
            let lately = now.saturating_sub(seen.last) < REMEMBERED;
            lives && (lately || seen.shift() > 0)
        });
    }

    /// File systems that are not offered in full: one block in `2^shift`.
    pub(crate) fn filesystems(&self) -> BTreeMap<Filesystem, u32> {
        let mut least = BTreeMap::new();
        for ((filesystem, _), seen) in self.0.iter().filter(|(_, seen)| seen.counts()) {
            let shift = seen.shift();
            let most = least.entry(*filesystem).or_insert(shift);
            *most = shift.min(*most);
        }
        least.retain(|_, shift| *shift > 0);
        least
    }

    /// Pools that are not offered in full: one block in `2^shift`, and always some, as a pool may use another file system. Limits
    /// of whole file systems do not count.
    pub(crate) fn pools(&self) -> BTreeMap<u32, u32> {
        let filesystems = self.filesystems();
        let mut least = BTreeMap::new();
        for ((filesystem, pool), seen) in &self.0 {
            let shift = seen.shift();
            let of_all = filesystems.get(filesystem).copied().unwrap_or(0);
            if shift == 0 || shift > of_all {
                let most = least.entry(*pool).or_insert(LEAST);
                *most = shift.min(*most);
            }
        }
        least.retain(|_, shift| *shift > 0);
        least
    }
}

// Tells the probe how much of each file system is offered.

/// The most file systems that are not offered in full: the size of the kernel's map.
const MAX_FILESYSTEMS: usize = 256;

/// The offers of file systems.
#[derive(Debug, Default)]
pub(crate) struct Filesystems {
    outcomes: VerdictsByPool,
    /// The offers in the kernel's map.
    applied: BTreeMap<Filesystem, u32>,
}

impl Filesystems {
    /// Counts a message's verdicts.
    pub(crate) fn add(&mut self, origin: &Origin, verdicts: &Tally) {
        let filesystem = (origin.filesystem, origin.disk);
        self.outcomes.add(filesystem, origin.pool, verdicts);
    }

    /// Decides anew, and tells the kernel. `pools` are those of cgroups.
    pub(crate) fn decide(&mut self, pools: &BTreeSet<u32>, probe: &EvictionProbe, now: Duration) {
        self.outcomes.decide(pools, now, tell);
        let wanted = self.outcomes.filesystems();
        self.apply(wanted.into_iter().take(MAX_FILESYSTEMS).collect(), probe);
    }

    fn apply(&mut self, wanted: BTreeMap<Filesystem, u32>, probe: &EvictionProbe) {
        let ended = self.applied.keys().filter(|key| !wanted.contains_key(key));
        let ended = ended.map(|key| (*key, 0));
        let changed = wanted.iter().map(|(key, shift)| (*key, *shift));
        let changed = changed.filter(|(key, shift)| self.applied.get(key) != Some(shift));
        for ((filesystem, disk), shift) in ended.chain(changed) {
            if let Err(error) = probe.offer_of_filesystem(filesystem, disk, shift) {
                tracing::warn!(%error, "offers stay as they were");
            }
        }
        self.applied = wanted;
    }

    /// Offers everything.
    pub(crate) fn reset(&mut self, probe: &EvictionProbe) {
        self.outcomes = VerdictsByPool::default();
        self.apply(BTreeMap::new(), probe);
    }

    /// Pools that are not offered in full because their blocks are refused, and how much of them is offered.
    pub(crate) fn refused_pools(&self) -> BTreeMap<u32, u32> {
        self.outcomes.pools()
    }

    /// The number of file systems that are not offered in full.
    pub(crate) fn limited(&self) -> usize {
        self.applied.len()
    }
}

fn tell((filesystem, disk): Filesystem, pool: u32, offer: &Offer) {
    let (filesystem, disk) = (filesystem.to_string(), disk.to_string());
    if offer.paused_until.is_some() {
        tracing::info!(
            filesystem,
            disk,
            pool,
            "the content of a pool's pages is not the disk's (encrypted?): not offered for a while"
        );
    } else if offer.shift == 0 || offer.shift == LEAST {
        tracing::info!(
            filesystem,
            disk,
            pool,
            one_in = 1 << offer.shift,
            "a pool's pages of a file system are offered at another rate"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::offers::acceptance::NOTHING;
    use justitia_guest_protocol::puts::Verdict::{Accepted, Held, Mismatch, Unknown};

    const FILESYSTEM: Filesystem = (Device(1), Device(2));
    const OTHER: Filesystem = (Device(3), Device(2));

    type Blocks = (Filesystem, u32, justitia_guest_protocol::puts::Verdict, u64);

    /// So many periods with these blocks each.
    fn run(outcomes: &mut VerdictsByPool, blocks: &[Blocks], periods: u64) {
        for period in 0..periods {
            for (filesystem, pool, verdict, count) in blocks {
                let mut tally = Tally::default();
                tally.add(*verdict, *count);
                outcomes.add(*filesystem, *pool, &tally);
            }
            let now = Duration::from_secs(2 * period);
            outcomes.decide(&[7, 8].into(), now, |_, _, _| ());
        }
    }

    #[test]
    fn what_is_refused_of_one_pool_is_offered_less_of_that_pool() {
        for (blocks, filesystems, pools) in [
            (
                &[
                    (FILESYSTEM, 7, Unknown, 900),
                    (FILESYSTEM, 7, Accepted, 100),
                    (FILESYSTEM, 8, Accepted, 100),
                ][..],
                vec![],
                [LEAST, 0],
            ),
            (
                &[(FILESYSTEM, 7, Held, 900), (FILESYSTEM, 8, Accepted, 100)],
                vec![],
                [LEAST, 0],
            ),
            // A file system that is encrypted for one only.
            (
                &[
                    (FILESYSTEM, 7, Mismatch, 900),
                    (FILESYSTEM, 0, Accepted, 1000),
                ],
                vec![],
                [LEAST, 0],
            ),
            // And for all: other file systems are offered as before.
            (
                &[
                    (FILESYSTEM, 7, Mismatch, 900),
                    (FILESYSTEM, 8, Mismatch, 900),
                ],
                vec![(FILESYSTEM, NOTHING)],
                [0, 0],
            ),
            // Of one little came so far.
            (
                &[(FILESYSTEM, 7, Mismatch, 900), (FILESYSTEM, 8, Mismatch, 2)],
                vec![(FILESYSTEM, NOTHING)],
                [0, 0],
            ),
            (
                &[(FILESYSTEM, 7, Held, 900), (FILESYSTEM, 8, Accepted, 2)],
                vec![],
                [LEAST, 0],
            ),
            (
                &[
                    (FILESYSTEM, 7, Unknown, 900),
                    (FILESYSTEM, 8, Held, 900),
                    (OTHER, 8, Accepted, 900),
                ],
                vec![(FILESYSTEM, LEAST)],
                [0, 0],
            ),
        ] {
            let mut outcomes = VerdictsByPool::default();
            run(&mut outcomes, blocks, 10);
            let found: Vec<_> = outcomes.filesystems().into_iter().collect();
            assert_eq!(found, filesystems, "{blocks:?}");
            let of = outcomes.pools();
            let found = [7, 8].map(|pool| of.get(&pool).copied().unwrap_or(0));
            assert_eq!(found, pools, "{blocks:?}");
        }
    }

    #[test]
    fn a_pool_that_rests_still_counts_and_one_that_is_gone_does_not() {
        let mut outcomes = VerdictsByPool::default();
        run(&mut outcomes, &[(FILESYSTEM, 8, Accepted, 100)], 1);
        run(&mut outcomes, &[(FILESYSTEM, 7, Unknown, 100)], 20);
        assert_eq!(outcomes.filesystems(), BTreeMap::new());
        let now = Duration::from_secs(50);
        outcomes.decide(&[7].into(), now, |_, _, _| ());
        assert_eq!(outcomes.filesystems(), [(FILESYSTEM, LEAST)].into());
        outcomes.decide(&BTreeSet::new(), now, |_, _, _| ());
        assert_eq!(outcomes.filesystems(), BTreeMap::new());
        assert!(outcomes.0.is_empty());
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut outcomes = VerdictsByPool::default();
        for number in 0..10_000 {
            outcomes.add((Device(number), Device(1)), 0, &Tally::default());
        }
        assert_eq!(outcomes.0.len(), MAX_ENTRIES);
        outcomes.decide(&BTreeSet::new(), REMEMBERED, |_, _, _| ());
        outcomes.decide(&BTreeSet::new(), 2 * REMEMBERED, |_, _, _| ());
        assert!(outcomes.0.is_empty());
    }
}
