//! Follows the divided disks as they are added and removed, and as their operator enables io.cost.

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

/// The source of disks.
#[derive(Debug)]
pub(super) struct Following {
    follower: DiskDiscovery,
    /// The root cgroup's `io.cost.qos`.
    io_cost: PathBuf,
    /// Reads that file; tests make it fail.
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

    /// Adds new disks, and forgets removed ones with the values and notes for their numbers. Another disk with the number of a
    /// removed one inherits nothing.
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
            // Nothing is known about io.cost now, so nothing changes.
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
                // It was removed already, or its counters cannot be read now.
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

/// The result of following disks.
#[derive(Debug, Default)]
pub(super) struct Followed {
    /// The restored knobs.
    pub(super) moved: Vec<Moved>,
    /// Whether a disk was added or removed.
    pub(super) changed: bool,
}

/// Whether device credits divide a block device, where they are enabled.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DiskSupport {
    /// Its name in `/sys/block`.
    pub name: String,
    /// Its number, as in a line of `io.weight`, if it is a disk.
    pub number: Option<String>,
    /// Why it is not divided, if so.
    pub left: Option<String>,
}

/// Every block device below `sys` (`/sys`) except partitions.
///
/// # Errors
/// If they cannot be listed now.
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
