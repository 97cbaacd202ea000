//! The cache of a run. By the virtual clock reads and writes of the SSD store take what was measured, and no thread writes.

use super::cost::{ssd_read, ssd_write};
use super::error::ExperimentError;
use super::spec::Experiment;
use justitia_cache::lab::{BLOCK_BYTES, BlocksRead, Device, FileDevice, Foreign, Overdue, clock};
use justitia_cache::{Cache, CacheConfig, CacheError, SsdConfig};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// A file that tells the cache's clock how long it takes.
struct ModelledSsd(FileDevice);

impl Device for ModelledSsd {
    fn read(&self, offsets: &[u64], patience: Duration) -> Result<BlocksRead, Overdue> {
        clock::pass(ssd_read(u64::try_from(offsets.len()).unwrap_or(0)));
        self.0.read(offsets, patience)
    }

    fn write(&self, requests: &[(u64, &[u8])]) -> Vec<io::Result<()>> {
        let bytes: u64 = requests
            .iter()
            .map(|(_, b)| justitia_cache::lab::len(b))
            .sum();
        clock::pass(ssd_write(bytes / BLOCK_BYTES));
        self.0.write(requests)
    }

    fn discard(&self, off: u64, len: u64) -> io::Result<()> {
        self.0.discard(off, len)
    }

    fn grow(&self, len: u64) -> io::Result<u64> {
        self.0.grow(len)
    }
}

/// An empty cache, whose SSD store is in the file `ssd`. `modelled`: by the virtual clock.
pub(super) fn new_cache(
    experiment: &Experiment,
    modelled: bool,
    ssd: &Path,
) -> Result<Arc<Cache>, ExperimentError> {
    let ssd = experiment
        .ssd
        .map(|size| SsdConfig::new(ssd, experiment.scaled(size.0)));
    let (machine_s, modelled) = match modelled {
        true => (None, ssd),
        false => (ssd, None),
    };
    let cache = Cache::new(CacheConfig {
        memory_bytes: experiment.scaled(experiment.memory.0),
        memory_limit: None,
        ssd: machine_s,
    })?;
    if let Some(SsdConfig { path, bytes, .. }) = modelled {
        let device = FileDevice::open(&path, bytes, Foreign::Refuse);
        let started =
            device.and_then(|device| cache.start_ssd(Box::new(ModelledSsd(device)), bytes, 0));
        started.map_err(|source| CacheError::Ssd { path, source })?;
    }
    Ok(cache)
}
