//! Do threads get in each other's way? The cache's own locks against one around everything.

use super::spread::{Spread, rate};
use justitia_cache::lab::{BLOCK_BYTES, NullDisk, Random};
use justitia_cache::{
    BLOCK_SIZE, Cache, CacheConfig, CacheError, CachedDisk, Mode, Policy, PoolId,
};
use justitia_share::Weight;
use parking_lot::Mutex;
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

/// Blocks of each tenant.
const BLOCKS: u64 = 4096;

/// Work of several threads, each a tenant with a pool of its own: three hits to one take and put.
#[derive(Clone, Debug)]
pub struct Contention {
    /// Threads.
    pub threads: usize,
    /// Operations a second, all threads together, with the cache's own locks.
    pub own_locks: Spread,
    /// The same with one lock around every operation.
    pub one_lock: Spread,
    /// The first over the second.
    pub ratio: Spread,
}

struct Tenant {
    inclusive: CachedDisk,
    exclusive: CachedDisk,
    pool: PoolId,
}

impl Tenant {
    fn new(cache: &Arc<Cache>, n: usize) -> Result<Self, CacheError> {
        let vm = cache.add_vm(&format!("vm{n}"), Weight::default(), Policy::Fifo)?;
        let pool = cache.default_pool(vm)?;
        let disk = |mode| {
            let id = cache.add_disk(vm, "disk")?;
            let backing = Arc::new(NullDisk(BLOCKS * BLOCK_BYTES));
            let disk = CachedDisk::new(backing, cache.clone(), id, mode)?;
            for block in 0..BLOCKS {
                disk.fill(pool, block, &[1; BLOCK_SIZE]);
            }
            Ok(disk)
        };
        Ok(Self {
            inclusive: disk(Mode::Inclusive)?,
            exclusive: disk(Mode::Exclusive)?,
            pool,
        })
    }

    /// Operations done in the time.
    fn work(&self, time: Duration, seed: u64, one: Option<&Mutex<()>>) -> u64 {
        let mut random = Random::new(seed);
        let mut buf = [0; BLOCK_SIZE];
        let mut done = 0;
        let start = Instant::now();
        while start.elapsed() < time {
            for i in 0..64 {
                let block = random.below(BLOCKS);
                let _guard = one.map(Mutex::lock);
                done += if i % 4 == 0 {
                    let taken = self.exclusive.get(self.pool, block, &mut buf);
                    u64::from(taken) + u64::from(self.exclusive.fill(self.pool, block, &buf))
                } else {
                    let off = block * BLOCK_BYTES;
                    u64::from(self.inclusive.read_cached(&mut buf, off))
                };
            }
        }
        done
    }
}

fn run(tenants: &[Tenant], time: Duration, one: Option<&Mutex<()>>) -> f64 {
    let start = Barrier::new(tenants.len());
    let began = Instant::now();
    let done: u64 = std::thread::scope(|scope| {
        let threads: Vec<_> = (1u64..)
            .zip(tenants)
            .map(|(seed, tenant)| {
                let start = &start;
                scope.spawn(move || {
                    start.wait();
                    tenant.work(time, seed, one)
                })
            })
            .collect();
        threads.into_iter().filter_map(|t| t.join().ok()).sum()
    });
    rate(done, began.elapsed())
}

/// Measures with each number of threads, `rounds` times in turn, `time` each.
///
/// # Errors
/// When the memory cannot be had.
pub fn contention(
    threads: &[usize],
    time: Duration,
    rounds: usize,
) -> Result<Vec<Contention>, CacheError> {
    let most = threads.iter().copied().max().unwrap_or(1);
    let slots = (u64::try_from(most).unwrap_or(1)) * (2 * BLOCKS + 128);
    let cache = Cache::new(CacheConfig::of_memory(slots * BLOCK_BYTES))?;
    let tenants: Vec<_> = (0..most)
        .map(|n| Tenant::new(&cache, n))
        .collect::<Result<_, _>>()?;
    let one = Mutex::new(());
    run(&tenants, time, None);
    Ok(threads
        .iter()
        .map(|&count| {
            let tenants = &tenants[..count];
            let rates: Vec<_> = (0..rounds)
                .map(|_| (run(tenants, time, None), run(tenants, time, Some(&one))))
                .collect();
            Contention {
                threads: count,
                own_locks: Spread::of(rates.iter().map(|r| r.0).collect()),
                one_lock: Spread::of(rates.iter().map(|r| r.1).collect()),
                ratio: Spread::of(rates.iter().map(|r| r.0 / r.1).collect()),
            }
        })
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ways_do_work() {
        let found = contention(&[1, 3], Duration::from_millis(5), 2).unwrap();
        assert_eq!(found.iter().map(|c| c.threads).collect::<Vec<_>>(), [1, 3]);
        assert!(
            found
                .iter()
                .all(|c| c.own_locks.low > 0.0 && c.one_lock.low > 0.0)
        );
    }
}
