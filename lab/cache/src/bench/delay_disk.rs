//! A disk whose reads take a time that is always the same.

use justitia_cache::BlockDevice;
use justitia_cache::lab::clock;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// A sleep may end this much later than it was told; the rest is waited for without sleeping.
const LATE: Duration = Duration::from_micros(120);

/// What a read seems to take that takes nothing: more than one of an SSD, which a pool would not use otherwise.
const SEEMING: Duration = Duration::from_millis(8);

/// Zeroes, each read of which takes as long as was set last. Without a delay it takes no time, and the cache's clock is told
/// otherwise: caches are filled by that.
pub(super) struct DelayDisk {
    bytes: u64,
    nanos: AtomicU64,
}

impl DelayDisk {
    pub(super) const fn new(bytes: u64) -> Self {
        Self {
            bytes,
            nanos: AtomicU64::new(0),
        }
    }

    pub(super) fn set_delay(&self, delay: Duration) {
        let nanos = u64::try_from(delay.as_nanos()).unwrap_or(u64::MAX);
        self.nanos.store(nanos, Ordering::Relaxed);
    }
}

impl BlockDevice for DelayDisk {
    fn size(&self) -> u64 {
        self.bytes
    }
    fn read_at(&self, buf: &mut [u8], _: u64) -> io::Result<()> {
        let nanos = self.nanos.load(Ordering::Relaxed);
        if nanos == 0 {
            clock::pass(SEEMING);
        }
        let end = Instant::now() + Duration::from_nanos(nanos);
        if let Some(sleep) = end.checked_duration_since(Instant::now() + LATE) {
            std::thread::sleep(sleep);
        }
        while Instant::now() < end {
            std::hint::spin_loop();
        }
        buf.fill(0);
        Ok(())
    }
    fn write_at(&self, _: &[u8], _: u64, _: bool) -> io::Result<()> {
        Ok(())
    }
    fn flush(&self) -> io::Result<()> {
        Ok(())
    }
}
