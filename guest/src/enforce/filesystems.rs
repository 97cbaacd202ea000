//! How much of each file system is offered, by the host's verdicts.

use std::collections::BTreeMap;
use std::time::Duration;

use justitia_kernel::probes::{Device, EvictionProbe};
use justitia_link::Tally;

use crate::batch::Origin;
use crate::plan::acceptance::{LEAST, Offer, decide};

/// The most file systems that are told apart; others are offered in full. As many as the kernel's map has.
const MAX_FILESYSTEMS: usize = 256;

/// A file system, on a disk.
type Key = (Device, Device);

/// What is offered of each file system.
#[derive(Debug, Default)]
pub(crate) struct Filesystems(BTreeMap<Key, (Offer, Tally)>);

impl Filesystems {
    /// Counts what became of a message's blocks.
    pub(crate) fn add(&mut self, origin: &Origin, verdicts: &Tally) {
        let key = (origin.filesystem, origin.disk);
        if self.0.len() < MAX_FILESYSTEMS || self.0.contains_key(&key) {
            self.0.entry(key).or_default().1.add_all(verdicts);
        }
    }

    /// Decides anew, and tells the kernel.
    pub(crate) fn decide(&mut self, probe: &EvictionProbe, now: Duration) {
        for ((filesystem, disk), (offer, seen)) in &mut self.0 {
            let Some(after) = decide(*offer, seen, now) else {
                continue;
            };
            *seen = Tally::default();
            if after.in_kernel() != offer.in_kernel() {
                tell(*filesystem, *disk, &after);
                if let Err(error) = probe.offer_of_filesystem(*filesystem, *disk, after.in_kernel())
                {
                    tracing::warn!(%error, "what is offered stays as it was");
                }
            }
            *offer = after;
        }
        // Whatever is offered in full needs no entry.
        self.0
            .retain(|_, (offer, seen)| *offer != Offer::default() || seen.total() > 0);
    }

    /// Offers all of everything.
    pub(crate) fn reset(&mut self, probe: &EvictionProbe) {
        for (filesystem, disk) in std::mem::take(&mut self.0).into_keys() {
            let _ = probe.offer_of_filesystem(filesystem, disk, 0);
        }
    }

    /// Of how many less than all is offered.
    pub(crate) fn limited(&self) -> usize {
        self.0
            .values()
            .filter(|(offer, _)| offer.in_kernel() > 0)
            .count()
    }
}

fn tell(filesystem: Device, disk: Device, offer: &Offer) {
    let (filesystem, disk) = (filesystem.to_string(), disk.to_string());
    if offer.paused_until.is_some() {
        tracing::info!(
            filesystem,
            disk,
            "its content is not the disk's (encrypted?): not offered for a while"
        );
    } else if offer.shift == 0 || offer.shift == LEAST {
        tracing::info!(
            filesystem,
            disk,
            one_in = 1 << offer.shift,
            "what is offered of a file system"
        );
    }
}
