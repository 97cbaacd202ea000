//! Bounds the number of metric series for pools of guests. A guest chooses the names of its pools, and can make and destroy
//! them without end; each new name would be one more series to store. So each VM has a limit of new names; its guest's other
//! pools share one series.

use super::api::Stats;
use crate::cache::{Counts, PoolStats, VmStats};
use crate::ids::PoolId;
use crate::ssd_admission::SsdAdmission;
use crate::token_bucket::TokenBucket;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

/// The most names of a guest's pools that are shown: twice the number of pools that it may have. A name counts as new again if
/// this many others were shown since.
const NAMES: u32 = 512;
/// After that, one more name is shown in this time: 1,440 a day, for containers that come under new names.
const EACH: Duration = Duration::from_secs(60);
/// The name of the series that the other pools share.
const OTHERS: &str = "(others)";

/// The names of all VMs' pools.
#[derive(Default)]
pub(super) struct PoolNames(BTreeMap<String, VmNames>);

struct VmNames {
    /// Least recently shown name first.
    shown: VecDeque<String>,
    /// Limits new names.
    new: TokenBucket,
    /// The last counts of the other pools, and the sum of those that were destroyed: a counter must not fall.
    others: BTreeMap<PoolId, Counts>,
    gone: Counts,
}

impl PoolNames {
    /// Merges the pools whose names are beyond the limit.
    pub(super) fn bound(&mut self, stats: &mut Stats, now: Instant) {
        let Stats {
            cache,
            pools_of_guests,
            ..
        } = stats;
        for vm in &mut cache.vms {
            let names = self.0.entry(vm.name.clone());
            let names = names.or_insert_with(|| VmNames::new(now));
            names.bound(vm, pools_of_guests, now);
        }
    }
}

impl VmNames {
    fn new(now: Instant) -> Self {
        Self {
            shown: VecDeque::new(),
            new: TokenBucket::new(NAMES, EACH, now),
            others: BTreeMap::new(),
            gone: Counts::default(),
        }
    }

    /// Is the name shown? It counts as new if it is not in `shown`.
    fn shows(&mut self, name: &str, now: Instant) -> bool {
        match self.shown.iter().position(|shown| shown == name) {
            Some(at) => {
                let again = self.shown.remove(at);
                self.shown.extend(again);
            }
            None if !self.new.take(now) => return false,
            None => {
                self.shown.push_back(name.to_owned());
                if self.shown.len() > NAMES as usize {
                    self.shown.pop_front();
                }
            }
        }
        true
    }

    fn bound(&mut self, vm: &mut VmStats, of_guests: &BTreeSet<PoolId>, now: Instant) {
        let pools = std::mem::take(&mut vm.pools);
        let (shown, others): (Vec<_>, Vec<_>) = pools
            .into_iter()
            .partition(|pool| !of_guests.contains(&pool.id) || self.shows(&pool.name, now));
        vm.pools = shown;
        let last = std::mem::take(&mut self.others);
        self.others = others.iter().map(|pool| (pool.id, pool.counts)).collect();
        for (_, counts) in last.iter().filter(|(id, _)| !self.others.contains_key(id)) {
            self.gone.add(counts);
        }
        let is_empty = self.gone == Counts::default();
        let id = others.first().map(|pool| pool.id);
        if let Some(id) = id.or_else(|| vm.pools.first().map(|pool| pool.id).filter(|_| !is_empty))
        {
            vm.pools.push(sum(id, &others, self.gone));
        }
    }
}

fn sum(id: PoolId, pools: &[PoolStats], gone: Counts) -> PoolStats {
    let of = |value: fn(&PoolStats) -> u64| pools.iter().map(value).sum();
    let mut counts = gone;
    pools.iter().for_each(|pool| counts.add(&pool.counts));
    PoolStats {
        id,
        name: OTHERS.to_owned(),
        memory_weight: of(|p| p.memory_weight),
        ssd_weight: of(|p| p.ssd_weight),
        memory_entitlement_bytes: of(|p| p.memory_entitlement_bytes),
        ssd_entitlement_bytes: of(|p| p.ssd_entitlement_bytes),
        memory_bytes: of(|p| p.memory_bytes),
        ssd_bytes: of(|p| p.ssd_bytes),
        ssd_admits: pools.first().map_or(SsdAdmission::All, |p| p.ssd_admits),
        counts,
        curve: None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::metrics::tests::hostile;
    use super::super::metrics::text;
    use super::*;

    /// The pools that a VM has at one moment: its default pool, and as many of its guest's as there are names.
    fn stats(names: impl Iterator<Item = (u32, String)>) -> Stats {
        let mut stats = hostile();
        let vm = &mut stats.cache.vms[0];
        vm.pools.truncate(1);
        let first = vm.pools[0].clone();
        for (index, name) in names {
            let id = PoolId {
                index,
                generation: 7,
            };
            let mut pool = first.clone();
            (pool.id, pool.name, pool.memory_bytes) = (id, name, 4096);
            (pool.counts.gets, pool.counts.ssd_write_bytes) = (3, 65_536);
            stats.pools_of_guests.insert(id);
            vm.pools.push(pool);
        }
        stats
    }

    fn gets_of_others(text: &str) -> Option<u64> {
        let line = text
            .lines()
            .find(|l| l.starts_with("justitia_cache_pool_gets_total") && l.contains(OTHERS))?;
        line.rsplit(' ').next()?.parse().ok()
    }

    #[test]
    fn a_guest_that_makes_pools_under_new_names_for_ever_makes_few_series() {
        let start = Instant::now();
        let mut names = PoolNames::default();
        let (mut series, mut last) = (BTreeSet::new(), 0);
        for scrape in 0..200_u32 {
            // An hour of scrapes, between which all pools are destroyed and made under other names.
            let now = start + Duration::from_secs(u64::from(scrape) * 18);
            let new = (0..250).map(|n| (scrape * 250 + n, format!("pool-{scrape}-{n}")));
            let mut stats = stats(new);
            names.bound(&mut stats, now);
            let held = stats.cache.vms[0].pools.iter().map(|p| p.memory_bytes);
            assert_eq!(held.sum::<u64>(), 250 * 4096, "nothing is missing");
            let text = text(&stats).unwrap();
            let labels = text.lines().filter_map(|line| line.split("pool=\"").nth(1));
            series.extend(labels.map(|l| l.split('"').next().unwrap().to_owned()));
            let gets = gets_of_others(&text).unwrap_or(0);
            assert!(gets >= last, "a counter fell");
            last = gets;
        }
        // Its default pool and the others, 512, and 60 in an hour.
        assert!(
            (500..=2 + 512 + 60).contains(&series.len()),
            "{}",
            series.len()
        );
        assert_eq!(
            last,
            (200 * 250 - u64::try_from(series.len() - 2).unwrap()) * 3
        );
    }

    #[test]
    fn nothing_that_pools_without_a_name_did_is_missing_in_their_sum() {
        let new = (0..NAMES + 9).map(|n| (n, format!("pool-{n}")));
        let mut stats = stats(new);
        PoolNames::default().bound(&mut stats, Instant::now());
        let others = stats.cache.vms[0].pools.last().unwrap();
        assert_eq!(others.name, OTHERS);
        let counts = Counts {
            gets: 9 * 3,
            ssd_write_bytes: 9 * 65_536,
            ..Counts::default()
        };
        assert_eq!(others.counts, counts);
    }

    #[test]
    fn names_that_come_again_and_pools_of_the_host_are_always_shown() {
        let start = Instant::now();
        let mut names = PoolNames::default();
        for round in 0..2000_u32 {
            let again = (0..100).map(|n| (round * 100 + n, format!("pool-{n}")));
            let mut stats = stats(again);
            if round == 1999 {
                // Pools of the host are always shown.
                stats.pools_of_guests.clear();
                for (n, pool) in stats.cache.vms[0].pools.iter_mut().enumerate() {
                    pool.name = format!("host-{n}");
                }
            }
            names.bound(&mut stats, start);
            let pools = &stats.cache.vms[0].pools;
            assert_eq!(pools.len(), 101);
            assert!(pools.iter().all(|pool| pool.name != OTHERS));
        }
    }
}
