//! Weights that are planned, on a real cache: the target reached, and the hits of the others against every static division.

use super::null_disk::NullDisk;
use super::random::{Random, Zipf};
use crate::block::{BLOCK_BYTES, BLOCK_SIZE};
use crate::cache::{Cache, PoolStats};
use crate::config::{CacheConfig, Mode, Policy, PoolSpec, StoreKind};
use crate::disk::CachedDisk;
use crate::ids::{PoolId, VmId};
use crate::planner::{Planner, PoolView, Target};
use justitia_share::Weight;
use justitia_share::num::to_f64;
use std::sync::Arc;

/// Blocks of the cache: 64 MiB.
const BLOCKS: u64 = 16_384;

/// What a container reads.
#[derive(Clone, Copy, Debug)]
enum Reads {
    /// One block of so many, the n-th with a probability as 1 / n^skew.
    Zipf(u64, f64),
    /// So many blocks one after another, again and again.
    Loop(u64),
}

struct Container {
    reads: Reads,
    /// Reads in a period.
    count: u32,
    zipf: Zipf,
    next: u64,
    random: Random,
}

impl Container {
    fn new(reads: Reads, count: u32, seed: u64) -> Self {
        let zipf = match reads {
            Reads::Loop(_) => Zipf::new(0, 0.0),
            Reads::Zipf(blocks, skew) => Zipf::new(blocks, skew),
        };
        Self {
            reads,
            count,
            zipf,
            next: 0,
            random: Random::new(seed),
        }
    }

    fn block(&mut self) -> u64 {
        match self.reads {
            Reads::Loop(blocks) => {
                self.next = (self.next + 1) % blocks;
                self.next
            }
            Reads::Zipf(..) => {
                let part = to_f64(self.random.below(1 << 40)) / to_f64(1 << 40);
                self.zipf.block(part)
            }
        }
    }
}

/// A VM of three containers, the first of which has a target.
struct Rig {
    cache: Arc<Cache>,
    vm: VmId,
    containers: Vec<(Container, CachedDisk, PoolId)>,
}

impl Rig {
    fn new(reads: &[(Reads, u32)], policy: Policy) -> Self {
        let cache = Cache::new(CacheConfig {
            memory_bytes: BLOCKS * BLOCK_BYTES,
            ..CacheConfig::default()
        })
        .unwrap();
        let vm = cache.add_vm("vm", Weight::default(), policy).unwrap();
        let containers = (0..).zip(reads).map(|(n, (reads, count))| {
            let pool = match n {
                0 => cache.default_pool(vm).unwrap(),
                _ => cache
                    .create_pool(vm, &format!("p{n}"), PoolSpec::default())
                    .unwrap(),
            };
            let id = cache.add_disk(vm, &format!("d{n}")).unwrap();
            let disk = Arc::new(NullDisk(1 << 30));
            let disk = CachedDisk::new(disk, Arc::clone(&cache), id, Mode::Inclusive).unwrap();
            (Container::new(*reads, *count, n + 1), disk, pool)
        });
        let containers: Vec<_> = containers.collect();
        cache.set_min_shift(crate::cache::PoolCurve::MIN_SHIFT);
        Self {
            cache,
            vm,
            containers,
        }
    }

    fn set(&self, weights: &[u64]) {
        let weights = weights
            .iter()
            .map(|weight| Weight::try_from(*weight).unwrap());
        let specs = self.containers.iter().zip(weights);
        let specs = specs.map(|((_, _, pool), w)| (*pool, PoolSpec::of(StoreKind::Memory, w)));
        self.cache.set_pools(&specs.collect()).unwrap();
    }

    /// One period: the reads of all, mixed. Returns the hit ratio of the first, and the hits of the others of all reads
    /// of theirs.
    fn period(&mut self) -> (f64, f64) {
        let before = self.stats();
        let mut block = [0; BLOCK_SIZE];
        let mut left: Vec<u32> = self.containers.iter().map(|(c, ..)| c.count).collect();
        while left.iter().any(|left| *left > 0) {
            for (left, (container, disk, pool)) in left.iter_mut().zip(&mut self.containers) {
                let some = (*left).min(container.count / 1000);
                *left -= some;
                for _ in 0..some {
                    let at = container.block();
                    disk.read_for(*pool, &mut block, at * BLOCK_BYTES).unwrap();
                }
            }
        }
        let after = self.stats();
        let pairs = || before.iter().zip(&after);
        let hits = |(before, after): (&PoolStats, &PoolStats)| {
            after.counts.memory_hits - before.counts.memory_hits
        };
        let gets =
            |(before, after): (&PoolStats, &PoolStats)| after.counts.gets - before.counts.gets;
        let of = |skip: usize, take: usize| {
            let hits: u64 = pairs().skip(skip).take(take).map(hits).sum();
            let gets: u64 = pairs().skip(skip).take(take).map(gets).sum();
            to_f64(hits) / to_f64(gets)
        };
        (of(0, 1), of(1, 9))
    }

    fn stats(&self) -> Vec<PoolStats> {
        self.cache.stats_of(self.vm).unwrap().pools
    }

    fn views(&self, target: Target) -> Vec<PoolView> {
        let stats = self.stats();
        let first = stats[0].id;
        let views = stats.into_iter().map(|pool| PoolView {
            id: pool.id,
            declared: 100,
            weight: pool.memory_weight,
            holds: pool.memory_bytes,
            gets: pool.counts.gets,
            hits: pool.counts.memory_hits,
            reads: pool.counts.disk_reads,
            read_us: pool.counts.disk_wait_us,
            curve: pool.curve,
            target: (pool.id == first).then_some(target),
            pinned: false,
        });
        views.collect()
    }
}

/// The hit ratios of the last two of eight periods with these weights.
fn fixed(reads: &[(Reads, u32)], policy: Policy, weights: &[u64]) -> (f64, f64) {
    let mut rig = Rig::new(reads, policy);
    rig.set(weights);
    let runs: Vec<_> = (0..8).map(|_| rig.period()).collect();
    mean(&runs[6..])
}

fn mean(runs: &[(f64, f64)]) -> (f64, f64) {
    let count = to_f64(u64::try_from(runs.len()).unwrap());
    let sum = runs
        .iter()
        .fold((0.0, 0.0), |sum, run| (sum.0 + run.0, sum.1 + run.1));
    (sum.0 / count, sum.1 / count)
}

#[test]
#[ignore = "a measurement: prints, and takes some minutes"]
fn measured_targets() {
    let mixes = [
        (
            "zipf with a target, loop, zipf",
            [
                (Reads::Zipf(20_000, 0.9), 30_000),
                (Reads::Loop(6_000), 20_000),
                (Reads::Zipf(30_000, 0.7), 40_000),
            ],
            70,
        ),
        (
            "loop with a target, two zipf",
            [
                (Reads::Loop(4_000), 10_000),
                (Reads::Zipf(20_000, 1.1), 40_000),
                (Reads::Zipf(20_000, 0.5), 20_000),
            ],
            95,
        ),
        (
            "zipf with a target, a loop that does not fit, zipf",
            [
                (Reads::Zipf(40_000, 0.8), 30_000),
                (Reads::Loop(30_000), 30_000),
                (Reads::Zipf(10_000, 0.9), 20_000),
            ],
            50,
        ),
    ];
    for (name, reads, percent) in mixes {
        for policy in [Policy::Fifo, Policy::Sieve] {
            let target = f64::from(percent) / 100.0;
            let mut rig = Rig::new(&reads, policy);
            let mut planner = Planner::default();
            let mut runs = Vec::new();
            for _ in 0..40 {
                runs.push(rig.period());
                let plan = planner.step(
                    BLOCKS * BLOCK_BYTES,
                    &rig.views(Target::HitPercent(percent)),
                );
                let weights: Vec<u64> = plan.pools.iter().map(|pool| pool.weight).collect();
                rig.set(&weights);
            }
            let (first, others) = mean(&runs[30..]);
            let weights: Vec<u64> = rig.stats().iter().map(|pool| pool.memory_weight).collect();
            // Every 12th of what is divided, and of those the ones that reach the target.
            let divisions = (1..11).flat_map(|a| (1..12 - a).map(move |b| [a, b, 12 - a - b]));
            let found = divisions.map(|weights| (fixed(&reads, policy, &weights), weights));
            let reached = found.filter(|((first, _), _)| *first >= target - 0.005);
            let best = reached.max_by(|a, b| a.0.1.total_cmp(&b.0.1)).unwrap();
            println!(
                "{name}, {policy:?}: target {target}, has {first:.3}; others {others:.3}, best static {:.3} with {:?} \
                 (first {:.3}): {:.3}; weights {weights:?}",
                best.0.1,
                best.1,
                best.0.0,
                others / best.0.1
            );
        }
    }
}
