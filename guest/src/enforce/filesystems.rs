//! How much of each file system is offered, by the host's verdicts.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use justitia_kernel::probes::EvictionProbe;
use justitia_link::Tally;

use crate::batch::Origin;
use crate::plan::acceptance::{LEAST, Offer};
use crate::plan::verdicts::{Filesystem, VerdictsByPool};

/// The most file systems of which less than all is offered: as many as the kernel's map has.
const MAX_FILESYSTEMS: usize = 256;

/// What is offered of each file system.
#[derive(Debug, Default)]
pub(crate) struct Filesystems {
    outcomes: VerdictsByPool,
    /// What the kernel has been told.
    applied: BTreeMap<Filesystem, u32>,
}

impl Filesystems {
    /// Counts what became of a message's blocks.
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
                tracing::warn!(%error, "what is offered stays as it was");
            }
        }
        self.applied = wanted;
    }

    /// Offers all of everything.
    pub(crate) fn reset(&mut self, probe: &EvictionProbe) {
        self.outcomes = VerdictsByPool::default();
        self.apply(BTreeMap::new(), probe);
    }

    /// Of which pools less than all is offered, and how much, as their blocks are refused.
    pub(crate) fn refused_pools(&self) -> BTreeMap<u32, u32> {
        self.outcomes.pools()
    }

    /// Of how many less than all is offered.
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
            "what is offered of a pool's pages of a file system"
        );
    }
}
