//! A hybrid pool beside one in memory alone and one on the SSD alone.

use super::delay_disk::DelayDisk;
use super::spread::{Spread, rate};
use justitia_cache::lab::{BLOCK_BYTES, Random, Zipf};
use justitia_cache::{
    BLOCK_SIZE, Cache, CacheConfig, CacheError, CachedDisk, Mode, Policy, PoolId, PoolSpec,
    SsdConfig, StoreKind,
};
use justitia_share::Weight;
use justitia_share::num::{to_f64, to_u64};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Blocks of the memory store (16 MiB); twice as many are used, and the SSD has room for four times as many.
const MEMORY: u64 = 4096;
const USED: u64 = 2 * MEMORY;
const SSD: u64 = 4 * MEMORY;

/// Times around the working set before it is measured, on a disk without delay.
const WARM: u64 = 12;

/// In which order the blocks are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// At random, all alike.
    Random,
    /// By Zipf's law with exponent 0.9.
    Zipf,
    /// One after another, again and again.
    Loop,
}

/// One pattern and one delay of the disk: reads of 4 KiB a second, one thread.
#[derive(Clone, Debug)]
pub struct Hybrid {
    /// In which order.
    pub pattern: Pattern,
    /// What a read of the disk takes, milliseconds.
    pub delay_ms: f64,
    /// Everything in memory that fits.
    pub memory: Spread,
    /// Everything on the SSD.
    pub ssd: Spread,
    /// In both.
    pub hybrid: Spread,
    /// The hybrid pool against the better of the two others, within a round.
    pub gain: Spread,
    /// Blocks of the hybrid pool that were moved, for each read.
    pub moves: f64,
}

/// A pool that is measured, in a cache of its own.
struct Subject {
    cache: Arc<Cache>,
    backing: Arc<DelayDisk>,
    disk: CachedDisk,
    pool: PoolId,
    random: Random,
    next: u64,
}

/// Removes the SSD store's file before the next one is made.
impl Drop for Subject {
    fn drop(&mut self) {
        let _ = self.cache.set_ssd(None);
    }
}

impl Subject {
    fn new(path: &Path, spec: PoolSpec) -> Result<Self, CacheError> {
        let cache = Cache::new(CacheConfig {
            memory_bytes: MEMORY * BLOCK_BYTES,
            memory_limit: None,
            ssd: Some(SsdConfig::new(path, SSD * BLOCK_BYTES)),
        })?;
        let vm = cache.add_vm("vm", Weight::default(), Policy::Sieve)?;
        let pool = cache.create_pool(vm, "pool", spec)?;
        let disk = cache.add_disk(vm, "disk")?;
        let backing = Arc::new(DelayDisk::new(USED * BLOCK_BYTES));
        let disk = CachedDisk::new(backing.clone(), cache.clone(), disk, Mode::Inclusive)?;
        Ok(Self {
            cache,
            backing,
            disk,
            pool,
            random: Random::new(1),
            next: 0,
        })
    }

    fn block(&mut self, pattern: Pattern, zipf: &Zipf) -> u64 {
        match pattern {
            Pattern::Random => self.random.below(USED),
            Pattern::Loop => {
                self.next = (self.next + 1) % USED;
                self.next
            }
            Pattern::Zipf => {
                let rank = zipf.block(to_f64(self.random.below(1 << 52)) / to_f64(1 << 52));
                // Neighbours are not equally hot; the factor is odd, and the number of blocks a power of two.
                rank.wrapping_mul(0x9E37_79B1) % USED
            }
        }
    }

    fn read(&mut self, block: u64) {
        let mut content = [0; BLOCK_SIZE];
        let done = self
            .disk
            .read_for(self.pool, &mut content, block * BLOCK_BYTES);
        debug_assert!(done.is_ok());
    }

    fn warm(&mut self, pattern: Pattern, zipf: &Zipf) {
        self.backing.set_delay(Duration::ZERO);
        for n in 0..WARM * USED {
            // First all in turn, twice, so that the rare blocks of a skewed pattern are there, too.
            let block = if n < 3 * USED {
                n % USED
            } else {
                self.block(pattern, zipf)
            };
            self.read(block);
            if n % 1024 == 0 {
                // The SSD's writers are not to be behind.
                std::thread::sleep(Duration::from_millis(2));
            }
        }
    }

    fn moves(&self) -> u64 {
        let stats = self.cache.stats();
        let pools = stats.vms.iter().flat_map(|vm| &vm.pools);
        pools
            .map(|pool| pool.counts.demotions + pool.counts.promotions + pool.counts.reinsertions)
            .sum()
    }

    /// Reads a second, and moves for each.
    fn measure(
        &mut self,
        pattern: Pattern,
        zipf: &Zipf,
        delay: Duration,
        time: Duration,
    ) -> (f64, f64) {
        self.backing.set_delay(delay);
        let (start, before) = (Instant::now(), self.moves());
        let mut reads = 0;
        while start.elapsed() < time {
            let block = self.block(pattern, zipf);
            self.read(block);
            reads += 1;
        }
        let taken = start.elapsed();
        let moves = to_f64(self.moves() - before) / to_f64(reads.max(1));
        (rate(reads, taken), moves)
    }
}

/// Measures each pattern and delay, `rounds` times for `time` each, with the SSD stores in files of `directory`.
///
/// # Errors
/// When a store cannot be had.
pub fn hybrid(
    directory: &Path,
    delays: &[Duration],
    rounds: usize,
    time: Duration,
) -> Result<Vec<Hybrid>, CacheError> {
    let made = tempfile::Builder::new()
        .prefix("justitia-hybrid-bench-")
        .tempdir_in(directory);
    let directory = made.map_err(|source| CacheError::Ssd {
        path: directory.into(),
        source,
    })?;
    let zipf = Zipf::new(USED, 0.9);
    let weight = Weight::default();
    let both = PoolSpec::of(StoreKind::Memory, weight).with(StoreKind::Ssd, weight);
    let specs = [
        ("memory", PoolSpec::of(StoreKind::Memory, weight)),
        ("ssd", PoolSpec::of(StoreKind::Ssd, weight)),
        ("hybrid", both),
    ];
    let mut found = Vec::new();
    for pattern in [Pattern::Random, Pattern::Zipf, Pattern::Loop] {
        let mut subjects = Vec::new();
        for (name, spec) in specs {
            let path = directory.path().join(name);
            let mut subject = Subject::new(&path, spec)?;
            subject.warm(pattern, &zipf);
            subjects.push(subject);
        }
        for delay in delays {
            let measured = |subject: &mut Subject| subject.measure(pattern, &zipf, *delay, time);
            let rows = (0..rounds).map(|_| subjects.iter_mut().map(measured).collect::<Vec<_>>());
            found.push(summary(pattern, *delay, &rows.collect::<Vec<_>>()));
        }
    }
    Ok(found)
}

/// Rows of memory, SSD and hybrid.
fn summary(pattern: Pattern, delay: Duration, rows: &[Vec<(f64, f64)>]) -> Hybrid {
    let of = |n: usize| rows.iter().filter_map(move |row| row.get(n).copied());
    let rates = |n: usize| of(n).map(|(rate, _)| rate).collect::<Vec<_>>();
    let (memory, ssd, hybrid) = (rates(0), rates(1), rates(2));
    let better = memory.iter().zip(&ssd).map(|(a, b)| a.max(*b));
    let gain = hybrid.iter().zip(better).map(|(h, better)| h / better);
    let moves = Spread::of(of(2).map(|(_, moves)| moves).collect()).median;
    Hybrid {
        pattern,
        delay_ms: to_f64(to_u64(delay.as_secs_f64() * 1e6)) / 1e3,
        gain: Spread::of(gain.collect()),
        memory: Spread::of(memory),
        ssd: Spread::of(ssd),
        hybrid: Spread::of(hybrid),
        moves,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The hybrid pool serves the working set, whatever the machine: no time is compared.
    #[test]
    fn a_hybrid_pool_moves_less_than_it_serves() {
        let directory = tempfile::tempdir().unwrap();
        let delays = [Duration::ZERO];
        let time = Duration::from_millis(30);
        // Five rounds: enough that the median is of a pool that has settled, on a busy machine, too.
        let found = hybrid(directory.path(), &delays, 5, time).unwrap();
        assert_eq!(found.len(), 3);
        for found in found {
            assert!(found.moves < 1.0, "{found:?}");
        }
    }
}
