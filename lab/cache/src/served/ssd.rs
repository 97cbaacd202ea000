//! The SSD store against its device: puts and gets of blocks beside fio's transfers of the same shape, on the
//! same file.

use super::fio;
use super::options::{BenchError, Options};
use super::report::{Row, Section};
use justitia_cache::lab::BLOCK_BYTES;
use justitia_cache::{
    BLOCK_SIZE, Cache, CacheConfig, CachedDisk, Mode, Policy, PoolId, PoolSpec, RamDisk, SsdConfig,
    StoreKind,
};
use justitia_share::Weight;
use justitia_share::num::to_f64;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Blocks that a get asks for together.
const TOGETHER: u64 = 32;

struct Store {
    cache: Arc<Cache>,
    disk: CachedDisk,
    pool: PoolId,
    blocks: u64,
}

/// Measures both in turn.
pub(super) fn against_the_device(
    dir: &Path,
    options: &Options,
) -> Result<Vec<Section>, BenchError> {
    let path = dir.join("ssd");
    let store = Store::new(&path, options.size.0)?;
    let file = format!("--filename={}", path.display());
    let raw = |how: &str, block: &str, depth: &str| {
        let target = ["--ioengine=io_uring", "--direct=1", &file, depth];
        fio::run(&target, how, block, options, true)
    };
    let mut puts = [row("the SSD store, MiB"), row("fio, 64 KiB, depth 32")];
    let mut gets = [row("the SSD store"), row("fio, 4 KiB, depth 32")];
    let mut alone = [row("the SSD store"), row("fio, 4 KiB, depth 1")];
    for _ in 0..options.runs.max(1) {
        // fio has written over what the store had put; its checksums would tell.
        puts[1]
            .runs
            .push(raw("write", "64k", "--iodepth=32")? / 16.0);
        puts[0].runs.push(store.put()?);
        let time = Duration::from_secs(options.seconds.max(1).into());
        gets[0].runs.push(store.get(TOGETHER, time)?);
        gets[1].runs.push(raw("randread", "4k", "--iodepth=32")?);
        alone[0].runs.push(store.get(1, time)?);
        alone[1].runs.push(raw("randread", "4k", "--iodepth=1")?);
    }
    let section = |title, rows: [Row; 2]| Section {
        title,
        rows: rows.into(),
    };
    Ok(vec![
        section("puts to the SSD store, MiB/s", puts),
        section(
            "gets of 32 blocks together from the SSD store, blocks/s",
            gets,
        ),
        section("gets of one block from the SSD store", alone),
    ])
}

fn row(name: &'static str) -> Row {
    Row {
        name,
        runs: Vec::new(),
        cost: Vec::new(),
    }
}

impl Store {
    fn new(path: &Path, bytes: u64) -> Result<Self, BenchError> {
        let cache = Cache::new(CacheConfig {
            memory_bytes: 0,
            // The last extents are never full.
            ssd: Some(SsdConfig::new(path, bytes + (4 << 20))),
            ..CacheConfig::default()
        })?;
        let vm = cache.add_vm("bench", Weight::default(), Policy::default())?;
        let pool = cache.default_pool(vm)?;
        let spec = PoolSpec::of(StoreKind::Ssd, Weight::default());
        cache.set_pool(pool, spec)?;
        let id = cache.add_disk(vm, "bench")?;
        let size = usize::try_from(bytes).map_err(std::io::Error::other)?;
        let backing = Arc::new(RamDisk::new(size));
        Ok(Self {
            disk: CachedDisk::new(backing, cache.clone(), id, Mode::Inclusive)?,
            cache,
            pool,
            blocks: bytes / BLOCK_BYTES,
        })
    }

    /// Drops everything, puts every block, and waits until all are on the device; MiB a second.
    fn put(&self) -> Result<f64, BenchError> {
        self.cache.drop_blocks(self.pool, StoreKind::Ssd)?;
        let content = [0x5A; BLOCK_SIZE];
        let start = Instant::now();
        for block in 0..self.blocks {
            // Refused while too many segments wait for the device.
            while !self.disk.fill(self.pool, block, &content) {
                std::thread::sleep(Duration::from_micros(50));
            }
        }
        let mut page = [0; BLOCK_SIZE];
        // Blocks that have not arrived are found without waiting, but for the last few, which fill no unit.
        let last = self.blocks.saturating_sub(64);
        while self.disk.read_cached(&mut page, last * BLOCK_BYTES) {
            std::thread::sleep(Duration::from_micros(50));
        }
        Ok(to_f64(self.blocks) / 256.0 / start.elapsed().as_secs_f64())
    }

    /// Gets `together` neighbours again and again; blocks a second.
    fn get(&self, together: u64, time: Duration) -> Result<f64, BenchError> {
        let step = usize::try_from(together).unwrap_or(1) * BLOCK_SIZE;
        let mut buf = vec![0; step];
        let mut random = justitia_cache::lab::Random::new(5);
        let before = self.hits();
        let start = Instant::now();
        while start.elapsed() < time {
            let block = random.below(self.blocks - together);
            self.disk
                .read_for(self.pool, &mut buf, block * BLOCK_BYTES)?;
        }
        Ok(to_f64(self.hits() - before) / start.elapsed().as_secs_f64())
    }

    fn hits(&self) -> u64 {
        let stats = self.cache.stats();
        let pools = stats.vms.iter().flat_map(|vm| &vm.pools);
        pools.map(|pool| pool.counts.ssd_hits).sum()
    }
}
