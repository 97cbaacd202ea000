//! The disks that are divided, as they come and go, and as their operator has io.cost enabled.

use std::path::{Path, PathBuf};
use std::time::Instant;

use justitia_kernel::io::io_cost_devices;
use serde::Serialize;

use super::divide::DiskCredits;
use super::knobs::Moved;
use crate::device::disk::{NoDisk, block_devices, is_exhausted};
use crate::device::disk_sampler::DiskDiscovery;
use crate::knobs::KnobStore;

#[cfg(test)]
mod tests;

/// Where disks are found.
#[derive(Debug)]
pub(super) struct Following {
    follower: DiskDiscovery,
    /// The root cgroup's `io.cost.qos`.
    io_cost: PathBuf,
    /// Reads that file; tests have it fail.
    read: fn(&Path) -> std::io::Result<Vec<u8>>,
}

impl Following {
    pub(super) const fn new(sys: PathBuf, io_cost: PathBuf) -> Self {
        Self {
            follower: DiskDiscovery::new(sys),
            io_cost,
            read: |path| std::fs::read(path),
        }
    }

    /// Takes in the disks that have come, and lets go of those that have gone: of what stands there, and of what was noted
    /// of their numbers. Another disk that has got the number of one that is gone has no part in what was known of that.
    pub(super) fn follow(
        &mut self,
        disks: &mut Vec<DiskCredits>,
        mut store: Option<&mut KnobStore>,
        now: Instant,
    ) -> Followed {
        let mut followed = Followed::default();
        let failed = disks.iter().any(|disk| disk.meter.is_gone());
        let Some(found) = self.follower.poll(failed, now) else {
            return followed;
        };
        let qos = match (self.read)(&self.io_cost) {
            // Nothing is known of io.cost now, so nothing changes.
            Err(error) if is_exhausted(&error) => {
                self.follower.read_again();
                return followed;
            }
            qos => qos.unwrap_or_default(),
        };
        let io_cost = io_cost_devices(&qos);
        let known = disks.len();
        let (stay, go): (Vec<_>, Vec<_>) = std::mem::take(disks)
            .into_iter()
            .partition(|one| !one.meter.is_gone() && found.iter().any(|disk| one.is(disk)));
        *disks = stay;
        for mut disk in go {
            let gone = !found.iter().any(|found| disk.is(found));
            let moved = disk.leave(gone, store.as_deref_mut());
            followed.moved.extend(moved);
        }
        let stayed = disks.len();
        for disk in &found {
            if disks.iter().any(|one| one.is(disk)) {
                continue;
            }
            match DiskCredits::new(disk) {
                Some(new) => disks.push(new),
                // It is gone already, or its counters cannot be read at this moment.
                None => self.follower.read_again(),
            }
        }
        followed.changed = known != stayed || stayed != disks.len();
        for disk in disks {
            disk.io_cost = io_cost.contains(&disk.disk.id) && !disk.has_own_io_cost();
        }
        followed
    }
}

/// What came of following disks.
#[derive(Debug, Default)]
pub(super) struct Followed {
    /// What was given back.
    pub(super) moved: Vec<Moved>,
    /// Whether a disk came or went.
    pub(super) changed: bool,
}

/// Whether device credits divide a block device, where they are on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DiskSupport {
    /// Its name in `/sys/block`.
    pub name: String,
    /// Its number, as a line of `io.weight` has it, if it is a disk.
    pub number: Option<String>,
    /// Why it is not divided, if so.
    pub left: Option<String>,
}

/// Every block device below `sys` (`/sys`) but partitions.
///
/// # Errors
/// If they cannot be listed at this moment.
pub fn disk_support(sys: &Path) -> Result<Vec<DiskSupport>, NoDisk> {
    let devices = block_devices(sys)?.into_iter();
    let support = devices
        .map(|(name, found)| {
            let left = found.as_ref().err().map(ToString::to_string);
            let number = found.ok().map(|disk| disk.id.to_string());
            DiskSupport { name, number, left }
        })
        .collect();
    Ok(support)
}
