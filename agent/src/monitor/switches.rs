//! What an operator can switch while the agent runs.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use justitia_kernel::block::bfq_disks;
use justitia_kernel::lru_gen;

use super::reclaim_features::ReclaimFeatures;
use super::schedule::Monitor;
use super::unmanaged::lru_gen_usable;
use justitia_cgroup_tree::Changes;

/// How often the switches are read.
const PERIOD: Duration = Duration::from_secs(5);

/// Reads the switches: the LRU, and the disks' schedulers.
#[derive(Debug)]
pub struct Switches {
    sys: PathBuf,
    read_at: Instant,
}

impl Switches {
    /// They were read at `now`, from the sysfs at `sys`.
    #[must_use]
    pub fn new(sys: &Path, now: Instant) -> Self {
        Self {
            sys: sys.to_owned(),
            read_at: now,
        }
    }

    /// The features by now, if any has changed. What cannot be read stays as it was.
    pub fn poll(&mut self, features: ReclaimFeatures, now: Instant) -> Option<ReclaimFeatures> {
        if now.saturating_duration_since(self.read_at) < PERIOD {
            return None;
        }
        self.read_at = now;
        let mut found = features;
        if let Ok(Some(bits)) = lru_gen::enabled(&self.sys) {
            found.multi_gen = bits & 1 == 1;
        }
        if let Ok(disks) = bfq_disks(&self.sys.join("block")) {
            found.bfq = !disks.is_empty();
        }
        if found.multi_gen != features.multi_gen {
            found.lru_gen = found.multi_gen && lru_gen_usable();
        }
        (found != features).then_some(found)
    }
}

impl Monitor {
    /// Goes on with other features.
    pub fn set_features(&mut self, features: ReclaimFeatures, changes: &mut Changes) {
        self.features = features;
        self.unmanaged.set_features(&features);
        self.cgroups.set_bfq(features.bfq, changes);
    }
}
