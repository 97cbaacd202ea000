//! Does a pool hold what it is entitled to, when all want more?

use justitia_cache::lab::{BLOCK_BYTES, NullDisk, Random};
use justitia_cache::{
    BLOCK_SIZE, Cache, CacheConfig, CacheError, CachedDisk, Mode, Policy, PoolSpec, StoreKind,
};
use justitia_share::Weight;
use std::sync::Arc;

/// One pool among saturating ones.
#[derive(Clone, Copy, Debug)]
pub struct PoolOccupancy {
    /// Its weight.
    pub weight: u64,
    /// What it is entitled to, bytes.
    pub entitled: u64,
    /// What it held on average over the last half of the run, bytes.
    pub held: u64,
    /// The farthest that what it held was from what it is entitled to in that time, bytes.
    pub farthest: u64,
}

/// Saturating pools of a VM.
#[derive(Clone, Debug)]
pub struct Occupancy {
    /// The pools, in the order of the weights.
    pub pools: Vec<PoolOccupancy>,
    /// The worst of (farthest − 1 % of what is entitled), bytes: at most 2 MiB is asked for.
    pub worst_beyond_one_percent: u64,
}

/// Lets pools of these weights put more than fits into a memory store of `bytes`, the first twice as often as
/// the second and so on, so that what they hold comes from the weights and not from their pace.
///
/// # Errors
/// When the memory cannot be had.
pub fn occupancy(weights: &[Weight], bytes: u64) -> Result<Occupancy, CacheError> {
    let cache = Cache::new(CacheConfig::of_memory(bytes))?;
    let vm = cache.add_vm("vm", Weight::default(), Policy::Fifo)?;
    let id = cache.add_disk(vm, "disk")?;
    let backing = Arc::new(NullDisk(1 << 50));
    let disk = CachedDisk::new(backing, cache.clone(), id, Mode::Exclusive)?;
    let mut pools = Vec::new();
    for &weight in weights {
        let store = StoreKind::Memory;
        pools.push(cache.create_pool(vm, "pool", PoolSpec::of(store, weight))?);
    }
    let all: u64 = weights.iter().map(|w| w.get()).sum();
    let mut found: Vec<_> = weights
        .iter()
        .map(|w| PoolOccupancy {
            weight: w.get(),
            entitled: bytes * w.get() / all.max(1),
            held: 0,
            farthest: 0,
        })
        .collect();
    let mut random = Random::new(3);
    let (mut block, mut samples) = (0, 0);
    // The slowest still puts its part several times over.
    let rounds = (bytes / BLOCK_BYTES * 8) << weights.len().min(8);
    for round in 0..rounds {
        // The position of the lowest bit set is geometric: each half as often as the one before.
        let at = usize::try_from(random.next().trailing_zeros()).unwrap_or(0);
        let Some(pool) = pools.get(at) else {
            continue;
        };
        disk.fill(*pool, block, &[0; BLOCK_SIZE]);
        block += 1;
        if round > rounds / 2 && round % (rounds / 200) == 0 {
            samples += 1;
            let stats = cache.stats();
            let held = stats.vms.iter().flat_map(|vm| &vm.pools).skip(1);
            for (sample, pool) in found.iter_mut().zip(held) {
                sample.held += pool.memory_bytes;
                let off = pool.memory_bytes.abs_diff(sample.entitled);
                sample.farthest = sample.farthest.max(off);
            }
        }
    }
    for pool in &mut found {
        pool.held /= u64::max(samples, 1);
    }
    let beyond = |p: &PoolOccupancy| p.farthest.saturating_sub(p.entitled / 100);
    Ok(Occupancy {
        worst_beyond_one_percent: found.iter().map(beyond).max().unwrap_or(0),
        pools: found,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The promise: within 2 MiB and one per cent, whatever the weights.
    #[test]
    fn saturating_pools_hold_what_their_weights_give() {
        for weights in [
            [100, 100, 100, 100],
            [100, 200, 400, 800],
            [800, 400, 200, 100],
            [1, 10, 100, 1000],
            [10_000, 1, 1, 9_999],
        ] {
            let weights = weights.map(|w| Weight::try_from(w).unwrap());
            let found = occupancy(&weights, 16 << 20).unwrap();
            assert!(
                found.worst_beyond_one_percent <= 2 << 20,
                "{weights:?}: {found:?}"
            );
            // Not only near: the order of the weights shows.
            for pool in &found.pools {
                let off = pool.held.abs_diff(pool.entitled);
                assert!(off <= 1 << 20, "{weights:?}: {pool:?}");
            }
        }
    }
}
