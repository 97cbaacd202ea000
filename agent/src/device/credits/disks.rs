//! The disks that are divided, as they come and go, and as their operator has io.cost share them.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::Instant;

use justitia_kernel::cgroup::CgroupId;
use justitia_kernel::io::{DevId, io_cost_devices};
use justitia_kernel::knob::Knob;
use justitia_share::credit::{CreditLoop, Interval, Settings};
use serde::Serialize;

use super::tree::Divided;
use super::{Credits, DiskCredits, Moved};
use crate::device::disk::{Disk, DiskIdentity, NoDisk, block_devices, is_exhausted};
use crate::device::disk_sampler::{DiskDiscovery, DiskSampler};
use crate::device::tenant_io::TenantIo;
use crate::device::weights::{Change, Looked, Used, Weighted};
use crate::knobs::KnobStore;
use crate::monitor::Monitor;

#[cfg(test)]
mod tests;

/// Where disks are found, and which of them are left alone.
#[derive(Debug)]
pub(super) struct Following {
    follower: DiskDiscovery,
    /// The root cgroup's `io.cost.qos`.
    io_cost: PathBuf,
    /// Reads that file; tests have it fail.
    read: fn(&Path) -> std::io::Result<Vec<u8>>,
    /// Why disks are left alone that are there.
    left: Vec<String>,
}

impl Following {
    pub(super) const fn new(sys: PathBuf, io_cost: PathBuf) -> Self {
        Self {
            follower: DiskDiscovery::new(sys),
            io_cost,
            read: |path| std::fs::read(path),
            left: Vec::new(),
        }
    }

    /// Why disks are left alone that are there.
    pub(super) fn left(&self) -> &[String] {
        &self.left
    }
}

impl Credits {
    /// Takes in the disks that have come, and lets go of those that have gone: of their limits, and of what was noted
    /// of their numbers. Another disk that has got the number of one that is gone has no part in what was known of that.
    pub(super) fn follow_disks(&mut self, mut store: Option<&mut KnobStore>, now: Instant) {
        let Some(following) = &mut self.following else {
            return;
        };
        let failed = self.disks.iter().any(|disk| disk.meter.is_gone());
        let Some(found) = following.follower.poll(failed, now) else {
            return;
        };
        let qos = match (following.read)(&following.io_cost) {
            // Nothing is known of io.cost now, so nothing changes.
            Err(error) if is_exhausted(&error) => return following.follower.read_again(),
            qos => qos.unwrap_or_default(),
        };
        let io_cost = io_cost_devices(&qos);
        let (left, divided): (Vec<&Disk>, Vec<&Disk>) =
            found.iter().partition(|disk| io_cost.contains(&disk.id));
        following.left = left.into_iter().map(left_to_io_cost).collect();

        let known = self.disks.len();
        let (stay, go): (Vec<_>, Vec<_>) = std::mem::take(&mut self.disks)
            .into_iter()
            .partition(|one| !one.meter.is_gone() && divided.iter().any(|disk| one.is(disk)));
        self.disks = stay;
        for disk in go {
            let gone = !found.iter().any(|found| disk.is(found));
            let why = match gone {
                true => GONE,
                false if disk.meter.is_gone() => UNREADABLE,
                false => IO_COST,
            };
            tracing::info!(disk = disk.disk.name, number = %disk.disk.id, why, "no more divided");
            if let Some(store) = store.as_deref_mut() {
                self.moved.extend(release(disk.disk.id, store, why));
                if gone {
                    store.forget_unwritable(Knob::IoMax(disk.disk.id));
                    store.forget_unwritable(Knob::IoBfqWeightOn(disk.disk.id));
                }
            }
        }
        let stayed = self.disks.len();
        for disk in divided {
            if self.disks.iter().any(|one| one.is(disk)) {
                continue;
            }
            match DiskCredits::new(disk) {
                Some(new) => self.disks.push(new),
                // It is gone already, or its counters cannot be read at this moment.
                None => following.follower.read_again(),
            }
        }
        if known != stayed || stayed != self.disks.len() {
            // The counters of a number are not those of another disk that has it now.
            self.users.reset();
            self.audited = None;
            self.stir(now);
        }
    }
}

/// Why limits are given back.
const GONE: &str = "the disk is gone";
const UNREADABLE: &str = "the disk's counters cannot be read";
const IO_COST: &str = "io.cost is enabled on the disk; its operator's choice is left to work alone";

impl DiskCredits {
    /// A disk of which nothing is known yet; `None` if it is gone already.
    fn new(disk: &Disk) -> Option<Self> {
        let mut meter = DiskSampler::new(&disk.dir);
        // Two disks do not have one name at the same time: one that is there before and after is the one in between.
        if DiskIdentity::of(&disk.dir) != Some(disk.identity) || !meter.is_present() {
            return None;
        }
        tracing::info!(disk = disk.name, number = %disk.id, "divided while it is contended");
        Some(Self {
            disk: disk.clone(),
            meter,
            credits: CreditLoop::new(Settings::default()),
            standing: HashMap::new(),
            weighted: None,
        })
    }

    fn is(&self, disk: &Disk) -> bool {
        (self.disk.id, self.disk.identity) == (disk.id, disk.identity)
    }
}

impl DiskCredits {
    /// Whether it is divided.
    pub(super) fn engaged(&self) -> bool {
        match &self.weighted {
            Some(weighted) => weighted.engaged(),
            None => self.credits.engaged(),
        }
    }

    /// The weights of a disk that BFQ schedules; returns the parts of who contends.
    pub(super) fn weigh(
        &mut self,
        interval: &Interval,
        (tree, nodes): &Divided,
        users: &[(CgroupId, TenantIo)],
        monitor: &Monitor,
        store: Option<&mut KnobStore>,
        moved: &mut Vec<Moved>,
    ) -> Vec<(CgroupId, f64)> {
        let (device, throughput) = (self.disk.id, self.meter.throughput());
        let Some(weighted) = &mut self.weighted else {
            return Vec::new();
        };
        let looked = Looked {
            seconds: interval.seconds,
            busy: interval.busy,
            throughput,
        };
        let used = users.iter().filter_map(|(id, io)| {
            let flow = io.flow(device);
            Some(Used {
                node: *nodes.get(id)?,
                bytes: flow.bytes(),
                written: flow.wbytes,
                stalled: io.stalled,
                application: io.application,
                dirty: io.dirty,
            })
        });
        let used: Vec<Used> = used.collect();
        let corrected = weighted.step(tree, nodes, looked, &used);
        tracing::trace!(disk = self.disk.name, ?looked, ?used, ?corrected, "weights");
        if let Some(store) = store
            && self.meter.is_present()
        {
            let changes = weighted.apply(
                &corrected,
                |id| Some(&monitor.cgroups.get(id)?.cgroup),
                store,
            );
            moved.extend(
                changes
                    .into_iter()
                    .map(|change| weight_moved(device, change)),
            );
        }
        let part = |(id, _): &(CgroupId, TenantIo)| {
            let node = nodes.get(id)?;
            let one = corrected.iter().find(|one| one.node == *node)?;
            Some((*id, one.part))
        };
        users.iter().filter_map(part).collect()
    }

    /// Has BFQ's weights corrected where that is `wanted` and BFQ schedules the disk; begins anew where that has changed.
    pub(super) fn follow_scheduler(
        &mut self,
        wanted: bool,
        store: Option<&mut KnobStore>,
    ) -> Vec<Moved> {
        let bfq = wanted && self.disk.scheduler().as_deref() == Some("bfq");
        if bfq == self.weighted.is_some() {
            return Vec::new();
        }
        tracing::info!(
            disk = self.disk.name,
            bfq,
            "divided by BFQ's weights, corrected, or by limits"
        );
        let moved = store.map(|store| self.let_go(store, "the disk is divided in another way"));
        self.weighted = bfq.then(|| Weighted::new(self.disk.id));
        moved.unwrap_or_default()
    }

    /// Gives everything back, and begins anew.
    pub(super) fn let_go(&mut self, store: &mut KnobStore, why: &str) -> Vec<Moved> {
        let device = self.disk.id;
        let changes = match &mut self.weighted {
            Some(weighted) => weighted.let_go(store, why),
            None => Vec::new(),
        };
        let mut moved: Vec<Moved> = changes
            .into_iter()
            .map(|change| weight_moved(device, change))
            .collect();
        for (id, _) in self.standing.drain() {
            store.restore(id, Knob::IoMax(device));
            moved.push(Moved {
                id,
                knob: Knob::IoMax(device),
                to: None,
                why: why.to_owned(),
            });
        }
        self.credits = CreditLoop::new(Settings::default());
        moved
    }
}

fn weight_moved(device: DevId, change: Change) -> Moved {
    Moved {
        id: change.id,
        knob: Knob::IoBfqWeightOn(device),
        to: change.to,
        why: change.why,
    }
}

/// Gives back every limit on a disk. The kernel has dropped those of one that is gone.
fn release(device: DevId, store: &mut KnobStore, why: &str) -> Vec<Moved> {
    let ours = [Knob::IoMax(device), Knob::IoBfqWeightOn(device)];
    let held = store.owned().filter(|(_, held, _, _)| ours.contains(held));
    let held: Vec<_> = held.map(|(id, knob, ..)| (id, knob)).collect();
    let mut moved = Vec::new();
    for (id, knob) in held {
        store.restore(id, knob);
        moved.push(Moved {
            id,
            knob,
            to: None,
            why: why.to_owned(),
        });
    }
    moved
}

fn left_to_io_cost(disk: &Disk) -> String {
    format!(
        "Device bandwidth: io.cost is enabled on {}; its operator's choice is left to work alone",
        disk.name
    )
}

/// Whether device credits divide a block device, where they are on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DiskSupport {
    /// Its name in `/sys/block`.
    pub name: String,
    /// Its number, as `io.max` takes it, if it is a disk.
    pub number: Option<String>,
    /// Why it is not divided, if so.
    pub left: Option<String>,
}

/// Every block device below `sys` (`/sys`) but partitions; `qos` is what the root cgroup's `io.cost.qos` says.
///
/// # Errors
/// If they cannot be listed at this moment.
pub fn disk_support(sys: &Path, qos: &str) -> Result<Vec<DiskSupport>, NoDisk> {
    let io_cost = io_cost_devices(qos.as_bytes());
    let devices = block_devices(sys)?.into_iter();
    let support = devices
        .map(|(name, found)| {
            let left = match &found {
                Ok(disk) => io_cost.contains(&disk.id).then(|| IO_COST.to_owned()),
                Err(none) => Some(none.to_string()),
            };
            let number = found.ok().map(|disk| disk.id.to_string());
            DiskSupport { name, number, left }
        })
        .collect();
    Ok(support)
}
