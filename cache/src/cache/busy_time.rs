//! For how long a disk was busy with reads, as `io_ticks` in the kernel's `Documentation/admin-guide/iostats.rst`.

use parking_lot::Mutex;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The time in which at least one read was under way. Reads that wait together share it, so by the blocks that were read
/// it is what each took of the disk, and not what its reader waited.
#[derive(Debug, Default)]
pub(crate) struct BusyTime(Mutex<Busy>);

#[derive(Debug, Default)]
struct Busy {
    under_way: u32,
    since: Option<Instant>,
    total: Duration,
}

impl BusyTime {
    fn begin(&self, now: Instant) {
        let mut busy = self.0.lock();
        busy.under_way += 1;
        busy.since.get_or_insert(now);
    }

    fn end(&self, now: Instant) {
        let mut busy = self.0.lock();
        busy.under_way = busy.under_way.saturating_sub(1);
        if busy.under_way == 0
            && let Some(since) = busy.since.take()
        {
            busy.total += now.saturating_duration_since(since);
        }
    }

    /// All of it up to now.
    pub(crate) fn total(&self, now: Instant) -> Duration {
        let busy = self.0.lock();
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
        let begun = Instant::now();
        disk.begin(begun);
        let disk = Arc::clone(disk);
        Self { disk, begun }
    }

    /// How long it has taken so far.
    pub(crate) fn elapsed(&self) -> Duration {
        self.begun.elapsed()
    }
}

impl Drop for DiskRead {
    fn drop(&mut self) {
        self.disk.end(Instant::now());
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
                false => busy.end(at(ms)),
            }
            assert_eq!(busy.total(at(ms)), Duration::from_millis(total), "{ms}");
        }
    }
}
