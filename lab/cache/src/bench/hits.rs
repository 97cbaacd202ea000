//! How fast are hits, and do many pools slow them down?

use super::spread::{Spread, rate};
use justitia_cache::lab::{BLOCK_BYTES, NullDisk, Random};
use justitia_cache::{BLOCK_SIZE, Cache, CacheConfig, CacheError, CachedDisk, Mode, Policy};
use justitia_share::Weight;
use std::sync::Arc;
use std::time::Instant;

/// Hits of 4 KiB, one thread, blocks chosen at random.
#[derive(Clone, Debug)]
pub struct Hits {
    /// Hits a second with ten pools.
    pub few: Spread,
    /// Hits a second with a thousand pools.
    pub many: Spread,
    /// What a hit costs with a thousand pools, against ten.
    pub cost_ratio: Spread,
    /// Exclusive: a hit that takes the block out and a put that brings it back, pairs a second.
    pub exclusive_pairs: Spread,
    /// Metadata of the full memory store, bytes for each block it can hold.
    pub metadata_bytes_per_block: f64,
}

impl std::fmt::Display for Hits {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(f, "hits/s, 10 pools      {:.0}", self.few.median)?;
        writeln!(f, "hits/s, 1000 pools    {:.0}", self.many.median)?;
        writeln!(f, "cost, 1000 : 10       {}", self.cost_ratio)?;
        writeln!(
            f,
            "take and put, pairs/s {:.0}",
            self.exclusive_pairs.median
        )?;
        write!(
            f,
            "metadata B/block      {:.1}",
            self.metadata_bytes_per_block
        )
    }
}

/// Disks of one pool each, with everything in the cache.
struct Full {
    cache: Arc<Cache>,
    disks: Vec<CachedDisk>,
    pools: Vec<justitia_cache::PoolId>,
    blocks_each: u64,
}

impl Full {
    fn new(pools: u64, blocks: u64, mode: Mode) -> Result<Self, CacheError> {
        let blocks_each = blocks / pools;
        // Pools keep some slots spare.
        let memory = (blocks + pools * 32) * BLOCK_BYTES;
        let cache = Cache::new(CacheConfig::of_memory(memory))?;
        let mut disks = Vec::new();
        let mut ids = Vec::new();
        for n in 0..pools {
            let vm = cache.add_vm(&format!("vm{n}"), Weight::default(), Policy::Fifo)?;
            let id = cache.add_disk(vm, "disk")?;
            let pool = cache.default_pool(vm)?;
            let backing = Arc::new(NullDisk(blocks_each * BLOCK_BYTES));
            let disk = CachedDisk::new(backing, cache.clone(), id, mode)?;
            for block in 0..blocks_each {
                disk.fill(pool, block, &[0x5A; BLOCK_SIZE]);
            }
            disks.push(disk);
            ids.push(pool);
        }
        Ok(Self {
            cache,
            disks,
            pools: ids,
            blocks_each,
        })
    }

    fn pick(&self, random: &mut Random) -> (usize, u64) {
        let r = random.next();
        let count = u64::try_from(self.disks.len()).unwrap_or(1);
        let disk = usize::try_from((r >> 32) % count).unwrap_or(0);
        (disk, (r & 0xFFFF_FFFF) % self.blocks_each)
    }

    /// Hits a second. What was no hit counts as nothing.
    fn hits(&self, count: u64, random: &mut Random) -> f64 {
        let mut buf = [0; BLOCK_SIZE];
        let mut hits = 0;
        let start = Instant::now();
        for _ in 0..count {
            let (disk, block) = self.pick(random);
            hits += u64::from(self.disks[disk].read_cached(&mut buf, block * BLOCK_BYTES));
        }
        rate(hits, start.elapsed())
    }

    /// Pairs of an exclusive hit and a put, a second.
    fn pairs(&self, count: u64, random: &mut Random) -> f64 {
        let mut buf = [0; BLOCK_SIZE];
        let mut pairs = 0;
        let start = Instant::now();
        for _ in 0..count {
            let (disk, block) = self.pick(random);
            let pool = self.pools[disk];
            let disk = &self.disks[disk];
            pairs += u64::from(disk.get(pool, block, &mut buf) && disk.fill(pool, block, &buf));
        }
        rate(pairs, start.elapsed())
    }
}

/// Measures hits over `blocks` blocks, `rounds` times in turn, `count` hits each.
///
/// # Errors
/// When the memory cannot be had.
pub fn hits(blocks: u64, count: u64, rounds: usize) -> Result<Hits, CacheError> {
    let few = Full::new(10, blocks, Mode::Inclusive)?;
    let many = Full::new(1000, blocks, Mode::Inclusive)?;
    let exclusive = Full::new(10, blocks / 4, Mode::Exclusive)?;
    let mut random = Random::new(1);
    // Once around, so that no measured access is the first touch of its memory.
    few.hits(count, &mut random);
    many.hits(count, &mut random);
    let mut rates = Vec::new();
    let mut pairs = Vec::new();
    for round in 0..rounds {
        // Both orders, so that neither is always the one that comes second.
        let (a, b) = if round % 2 == 0 {
            let a = few.hits(count, &mut random);
            (a, many.hits(count, &mut random))
        } else {
            let b = many.hits(count, &mut random);
            (few.hits(count, &mut random), b)
        };
        rates.push((a, b));
        pairs.push(exclusive.pairs(count / 4, &mut random));
    }
    let stats = few.cache.stats();
    let metadata = stats.stores.first().map_or(0.0, |store| {
        justitia_share::num::to_f64(store.metadata_bytes)
            / justitia_share::num::to_f64((store.capacity_bytes / BLOCK_BYTES).max(1))
    });
    Ok(Hits {
        few: Spread::of(rates.iter().map(|r| r.0).collect()),
        many: Spread::of(rates.iter().map(|r| r.1).collect()),
        cost_ratio: Spread::of(rates.iter().map(|r| r.0 / r.1).collect()),
        exclusive_pairs: Spread::of(pairs),
        metadata_bytes_per_block: metadata,
    })
}

#[cfg(test)]
mod tests {
    use super::super::puts::spent;
    use super::{BLOCK_BYTES, BLOCK_SIZE, Full, Mode, Random, Spread, rate};

    /// Hits in a second of processor time.
    fn hits_by_cpu(full: &Full, count: u64, random: &mut Random) -> f64 {
        let (mut buf, mut hits) = ([0; BLOCK_SIZE], 0);
        let start = spent();
        for _ in 0..count {
            let (disk, block) = full.pick(random);
            hits += u64::from(full.disks[disk].read_cached(&mut buf, block * BLOCK_BYTES));
        }
        rate(hits, spent() - start)
    }

    /// What a hit costs with a part of the blocks sampled for the pools' curves, against none, in processor time:
    /// `cargo test -p justitia-cache-lab --lib measured_curves -- --ignored --nocapture`.
    #[test]
    #[ignore = "a measurement: prints"]
    fn measured_curves() {
        // Five is what a cache begins with.
        let shifts = [4, 5, 31];
        let caches = shifts.map(|shift| {
            let full = Full::new(10, 65_536, Mode::Inclusive).unwrap();
            full.cache.set_min_shift(shift);
            full
        });
        let mut random = Random::new(1);
        let mut rounds: Vec<[f64; 3]> = Vec::new();
        for round in 0..121 {
            let mut rates = [0.0; 3];
            // Each is the first as often as the others.
            for at in (0..3).map(|n| (n + round) % 3) {
                rates[at] = hits_by_cpu(&caches[at], 100_000, &mut random);
            }
            rounds.push(rates);
        }
        for (at, shift) in shifts.into_iter().enumerate() {
            let spread =
                |of: &dyn Fn(&[f64; 3]) -> f64| Spread::of(rounds.iter().skip(1).map(of).collect());
            let mut ratios: Vec<f64> = rounds.iter().map(|rates| rates[2] / rates[at]).collect();
            ratios.sort_by(f64::total_cmp);
            println!(
                "one block in {}: {:.0} hits/s, cost against next to none {:.3}, quartiles {:.3} and {:.3}",
                1_u64 << shift,
                spread(&|rates| rates[at]).median,
                ratios[ratios.len() / 2],
                ratios[ratios.len() / 4],
                ratios[ratios.len() * 3 / 4]
            );
        }
    }

    #[test]
    fn everything_measured_is_a_hit() {
        let mut random = Random::new(1);
        for (pools, mode) in [
            (10, Mode::Inclusive),
            (1000, Mode::Inclusive),
            (10, Mode::Exclusive),
        ] {
            let full = Full::new(pools, 8000, mode).unwrap();
            match mode {
                Mode::Inclusive => full.hits(4000, &mut random),
                Mode::Exclusive => full.pairs(4000, &mut random),
            };
            let stats = full.cache.stats();
            let of_pools = stats.vms.iter().flat_map(|vm| &vm.pools);
            let counts = of_pools.map(|pool| [pool.counts.gets, pool.counts.memory_hits]);
            let found = counts.fold([0; 2], |sum, of| [sum[0] + of[0], sum[1] + of[1]]);
            assert_eq!(found, [4000; 2], "{pools} pools, {mode:?}");
        }
        let shown = super::hits(8000, 400, 1).unwrap().to_string();
        assert!(shown.contains("1000 : 10"), "{shown}");
    }
}
