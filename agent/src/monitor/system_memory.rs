//! The host's memory, and how fast it is consumed.

use std::time::{Duration, Instant};

use justitia_kernel::proc::ProcFs;
use justitia_kernel::{PAGE_SIZE, Result};

use crate::model::Memory;

/// How often values that rarely change are read: total memory, watermarks, swap.
const SLOW_PERIOD: Duration = Duration::from_secs(10);

/// Samples `/proc/vmstat` and its like.
#[derive(Debug)]
pub struct SystemMemory {
    proc: ProcFs,
    memory: Memory,
    swap_on: bool,
    slow_at: Option<Instant>,
    /// When free memory was last read, and its value, bytes.
    polled: Option<(Instant, u64)>,
    /// When the reclaim counters were last read, and their sum, bytes.
    reclaimed: Option<(Instant, u64)>,
    /// How fast free memory falls, bytes per second.
    fall_rate: u64,
    /// How fast reclaim refills it, bytes per second.
    refill_rate: u64,
    file: u64,
    unreclaimable: u64,
}

impl SystemMemory {
    /// The host whose `/proc` this is.
    #[must_use]
    pub fn new(proc: ProcFs) -> Self {
        Self {
            proc,
            memory: Memory::default(),
            swap_on: false,
            slow_at: None,
            polled: None,
            reclaimed: None,
            fall_rate: 0,
            refill_rate: 0,
            file: 0,
            unreclaimable: 0,
        }
    }

    /// Reads the free memory only. That takes a few microseconds, so it can be done often.
    pub fn poll(&mut self, now: Instant) {
        let info = rustix::system::sysinfo();
        let free = info.freeram.saturating_mul(u64::from(info.mem_unit));
        if let Some((at, before)) = self.polled {
            let used = before.saturating_sub(free);
            self.fall_rate = decaying_peak(self.fall_rate, used, now - at);
            self.memory.consumption_rate = self.fall_rate.saturating_add(self.refill_rate);
        }
        self.polled = Some((now, free));
        self.memory.free = free;
    }

    /// Reads everything. `freed_by_us`: bytes that this agent's reclaim of cgroups has freed since the last call. The
    /// global counters do not include it.
    ///
    /// # Errors
    /// If `/proc` cannot be read.
    pub fn sample(&mut self, now: Instant, freed_by_us: u64) -> Result<()> {
        if self.slow_at.is_none_or(|at| now - at >= SLOW_PERIOD) {
            let meminfo = self.proc.meminfo()?;
            self.memory.total = meminfo.mem_total;
            self.swap_on = meminfo.swap_total > 0;
            self.memory.low_watermark = self.proc.zoneinfo()?.sum().low * PAGE_SIZE;
            self.slow_at = Some(now);
        }
        let vmstat = self.proc.vmstat()?;
        let stolen = (vmstat.pgsteal_kswapd + vmstat.pgsteal_direct) * PAGE_SIZE;
        if let Some((at, before)) = self.reclaimed {
            let refilled = stolen.saturating_sub(before).saturating_add(freed_by_us);
            self.refill_rate = decaying_peak(self.refill_rate, refilled, now - at);
        }
        self.reclaimed = Some((now, stolen));
        self.poll(now);
        self.file = vmstat.file_lru();
        self.unreclaimable = (vmstat.nr_dirty + vmstat.nr_writeback) * PAGE_SIZE;
        Ok(())
    }

    /// The memory as last read. [`Memory::reclaim_in_flight`] is 0.
    #[must_use]
    pub const fn memory(&self) -> Memory {
        self.memory
    }

    /// Whether there is swap space.
    #[must_use]
    pub const fn swap_on(&self) -> bool {
        self.swap_on
    }

    /// File pages on LRU lists, whole host, bytes.
    #[must_use]
    pub const fn file(&self) -> u64 {
        self.file
    }

    /// Dirty and writeback pages, whole host, bytes.
    #[must_use]
    pub const fn unreclaimable(&self) -> u64 {
        self.unreclaimable
    }
}

/// The rate of `used` bytes in `time`, or what is left of an earlier, higher rate `before`, which halves every 250 ms. So a
/// gap between two bursts does not look like their end. Bytes per second.
fn decaying_peak(before: u64, used: u64, time: Duration) -> u64 {
    let millis = u64::try_from(time.as_millis()).unwrap_or(u64::MAX).max(1);
    let rate = used.saturating_mul(1000) / millis;
    let halves = u32::try_from(millis / 250).unwrap_or(u32::MAX);
    rate.max(before.checked_shr(halves).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_fades() {
        let ms = Duration::from_millis;
        assert_eq!(decaying_peak(0, 10_000, ms(100)), 100_000);
        assert_eq!(decaying_peak(100_000, 0, ms(100)), 100_000);
        assert_eq!(decaying_peak(100_000, 0, ms(500)), 25_000);
        assert_eq!(decaying_peak(100_000, 0, Duration::from_secs(3600)), 0);
        assert_eq!(decaying_peak(u64::MAX, u64::MAX, Duration::ZERO), u64::MAX);
    }
}
