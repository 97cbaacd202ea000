//! What operations take.

use justitia_share::num::to_f64;
use std::time::Duration;

/// A copy of 4 KiB to the application, by the virtual clock (docs/results/cache.md: 1.75 million a second).
const COPY: Duration = Duration::from_nanos(570);
/// A block looked up in the cache (2.04 million hits a second).
const GET: Duration = Duration::from_nanos(490);
/// A block put, verified (680,000 a second).
const PUT: Duration = Duration::from_nanos(1470);
/// Blocks read from the SSD store together (14,111 gets of one block a second, 145,228 blocks of 32 together), and each.
const SSD: Duration = Duration::from_micros(65);
const SSD_BLOCK: Duration = Duration::from_micros(5);
/// A block written to the SSD store (2,256 MiB a second). No thread waits for it.
const SSD_WRITE: Duration = Duration::from_nanos(1730);

/// How long a read of `blocks` blocks of the SSD store together takes.
pub(super) fn ssd_read(blocks: u64) -> Duration {
    let each = SSD_BLOCK.mul_f64(to_f64(blocks));
    if blocks > 0 { SSD + each } else { each }
}

/// How long a write of `blocks` blocks to the SSD store takes.
pub(super) fn ssd_write(blocks: u64) -> Duration {
    SSD_WRITE.mul_f64(to_f64(blocks))
}

/// What a step of a thread takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Cost {
    /// Waited for whatever the clock: the application, the disk.
    pub(super) waited: Duration,
    /// Spent by the code; only the virtual clock needs to be told.
    pub(super) spent: Duration,
    /// What the application has read and written, bytes.
    pub(super) bytes: u64,
}

impl Cost {
    pub(super) fn copied(&mut self, blocks: u64) {
        self.spend(COPY, blocks);
    }

    pub(super) fn got(&mut self, blocks: u64) {
        self.spend(GET, blocks);
    }

    pub(super) fn put(&mut self) {
        self.spend(PUT, 1);
    }

    pub(super) fn read_ssd(&mut self, blocks: u64) {
        self.spent += ssd_read(blocks);
    }

    fn spend(&mut self, each: Duration, times: u64) {
        self.spent += each.mul_f64(to_f64(times));
    }
}
