//! For how long a disk was busy with reads, as `io_ticks` in the kernel's `Documentation/admin-guide/iostats.rst`.

use crate::clock;
use crate::worth::Mean;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The time in which at least one read was under way. Reads that wait together share it, so by the blocks that were read
/// it is what each took of the disk, and not what its reader waited.
#[derive(Debug, Default)]
pub(crate) struct BusyTime {
    busy: Mutex<Busy>,
    /// What the latest reads took on average, nanoseconds; 0 while that is not known.
    mean_ns: AtomicU64,
}

#[derive(Debug, Default)]
struct Busy {
    under_way: u32,
    since: Option<Instant>,
    total: Duration,
    /// What readers waited.
    mean: Mean,
}

impl BusyTime {
    fn begin(&self, now: Instant) {
        let mut busy = self.busy.lock();
        busy.under_way += 1;
        busy.since.get_or_insert(now);
    }

    fn end(&self, begun: Instant, now: Instant) {
        let mut busy = self.busy.lock();
        busy.under_way = busy.under_way.saturating_sub(1);
        if busy.under_way == 0
            && let Some(since) = busy.since.take()
        {
            busy.total += now.saturating_duration_since(since);
        }
        let waited = now.saturating_duration_since(begun).as_nanos();
        busy.mean.add(1, u64::try_from(waited).unwrap_or(u64::MAX));
        if let Some(ns) = busy.mean.get() {
            self.mean_ns.store(ns.max(1), Ordering::Relaxed);
        }
    }

    /// What readers waited for a read lately, nanoseconds; `None` while too few are known.
    pub(crate) fn read_ns(&self) -> Option<u64> {
        Some(self.mean_ns.load(Ordering::Relaxed)).filter(|ns| *ns > 0)
    }

    /// All of it up to now.
    pub(crate) fn total(&self, now: Instant) -> Duration {
        let busy = self.busy.lock();
        let since = busy.since.map(|since| now.saturating_duration_since(since));
        busy.total + since.unwrap_or_default()
    }
}

/// A read of a disk that is under way, until this is dropped.
pub(crate) struct DiskRead {
    disk: Arc<BusyTime>,
    begun: Instant,
}

impl DiskRead {
    /// A read of the disk whose time this is begins.
    pub(super) fn begin(disk: &Arc<BusyTime>) -> Self {
        let begun = clock::now();
        disk.begin(begun);
        let disk = Arc::clone(disk);
        Self { disk, begun }
    }

    /// How long it has taken so far.
    pub(crate) fn elapsed(&self) -> Duration {
        clock::since(self.begun)
    }
}

impl Drop for DiskRead {
    fn drop(&mut self) {
        self.disk.end(self.begun, clock::now());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_that_wait_together_share_the_time() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let busy = BusyTime::default();
        for (begin, ms, total) in [
            (true, 10, 0),
            (true, 12, 2),
            (true, 20, 10),
            (false, 30, 20),
            (false, 40, 30),
            // Two have ended, the third reads on.
            (false, 50, 40),
            // Idle meanwhile.
            (true, 100, 40),
            (false, 105, 45),
            // More ends than begins change nothing.
            (false, 200, 45),
        ] {
            match begin {
                true => busy.begin(at(ms)),
                false => busy.end(at(ms), at(ms)),
            }
            assert_eq!(busy.total(at(ms)), Duration::from_millis(total), "{ms}");
        }
    }
}
