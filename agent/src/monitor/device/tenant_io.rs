//! What a tenant did to the disks in one interval.

use justitia_kernel::io::DevId;
use justitia_share::credit::Flow;

/// A tenant's I/O in one interval. Amounts in bytes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TenantIo {
    /// What it transferred, by device, per second.
    pub flows: Vec<(DevId, Flow)>,
    /// The fraction of the time in which any of its tasks waited for I/O, or for memory that writeback has to free first.
    /// Without PSI, 1 for a tenant with I/O: the disk's own counters tell whether it is contended.
    pub stalled: f64,
    /// What its applications read and wrote, bytes per second. Without probes, what went through the disk and what became
    /// dirty; that is negative in an interval in which more was written back, and meant for averages.
    pub application: f64,
    /// What they wrote, of that; `None` without probes.
    pub written: Option<f64>,
    /// Dirty pages and pages under writeback.
    pub dirty: u64,
    /// Of those, the pages under writeback: at the disk, or throttled before it.
    pub writeback: u64,
    /// File pages.
    pub file: u64,
    /// Other memory.
    pub other: u64,
}

/// A tenant with fewer dirty bytes is no buffered writer.
pub(super) const DIRTY: u64 = 4 << 20;
/// A tenant that was a throttled writer remains one with this many dirty bytes: its dirty budget may allow no more, and
/// without the budget it would have any number again.
const STILL_DIRTY: u64 = DIRTY / 16;
/// A tenant whose tasks wait for this fraction of the time waits.
const STALLED: f64 = 0.3;

impl TenantIo {
    /// Whether it uses a disk: it transfers, waits, or has something to write.
    #[must_use]
    pub fn is_active(&self) -> bool {
        let moves = self.flows.iter().any(|(_, flow)| flow.is_some());
        moves || self.stalled > 0.0 || self.dirty >= DIRTY
    }

    /// Whether it is a buffered writer that waits. `was`: whether it was one lately.
    #[must_use]
    pub fn is_throttled_writer(&self, was: bool) -> bool {
        let least = if was { STILL_DIRTY } else { DIRTY };
        self.dirty >= least && self.stalled >= STALLED
    }

    /// What it wrote to all devices, bytes per second. A device upon another counts as two.
    #[must_use]
    pub fn device_write_rate(&self) -> f64 {
        self.flows.iter().map(|(_, flow)| flow.wbytes).sum()
    }

    /// What it transferred to and from one device, per second.
    #[must_use]
    pub fn flow(&self, device: DevId) -> Flow {
        self.flows
            .iter()
            .find(|(id, _)| *id == device)
            .map_or(Flow::default(), |(_, flow)| *flow)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_throttled_writer_remains_one_with_few_dirty_pages() {
        let io = |dirty, stalled| TenantIo {
            dirty,
            stalled,
            ..TenantIo::default()
        };
        for (dirty, stalled, was, expected) in [
            (8 << 20, 1.0, false, true),
            (8 << 20, 0.1, true, false),
            (1 << 20, 1.0, false, false),
            (1 << 20, 1.0, true, true),
            (4096, 1.0, true, false),
        ] {
            let found = io(dirty, stalled).is_throttled_writer(was);
            assert_eq!(found, expected, "{dirty} {stalled} {was}");
        }
    }
}
