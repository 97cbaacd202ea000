//! The machine's memory, and how fast it is being used up.

use std::time::{Duration, Instant};

use justitia_kernel::proc::ProcFs;
use justitia_kernel::{PAGE_SIZE, Result};

use crate::model::Memory;

/// How often the facts are read that change rarely (watermarks, swap).
const RARELY: Duration = Duration::from_secs(10);

/// Watches `/proc/vmstat`.
#[derive(Debug)]
pub struct SystemMemory {
    proc: ProcFs,
    memory: Memory,
    swap_on: bool,
    facts_at: Option<Instant>,
    polled: Option<(Instant, u64)>,
    refilled: Option<(Instant, u64)>,
    /// How fast the free memory falls, and how fast reclaim refills it, bytes per second.
    dropping: u64,
    refilling: u64,
    /// File pages on LRU lists, whole machine, bytes.
    file: u64,
    /// Dirty and writeback pages, whole machine, bytes.
    unreclaimable: u64,
}

impl SystemMemory {
    /// Watches the machine whose `/proc` this is.
    #[must_use]
    pub fn new(proc: ProcFs) -> Self {
        Self {
            proc,
            memory: Memory::default(),
            swap_on: false,
            facts_at: None,
            polled: None,
            refilled: None,
            dropping: 0,
            refilling: 0,
            file: 0,
            unreclaimable: 0,
        }
    }

    /// Looks at the free memory only: a few microseconds, so that it can be done often.
    pub fn poll(&mut self, now: Instant) {
        let info = rustix::system::sysinfo();
        let free = info.freeram.saturating_mul(u64::from(info.mem_unit));
        if let Some((at, before)) = self.polled {
            let used = before.saturating_sub(free);
            self.dropping = decayed(self.dropping, used, now - at);
            self.memory.consumption_rate = self.dropping.saturating_add(self.refilling);
        }
        self.polled = Some((now, free));
        self.memory.free = free;
    }

    /// Reads everything again. `freed_by_us` is what our own reclaim of cgroups has freed since the last time: the
    /// global counters leave that out.
    ///
    /// # Errors
    /// If `/proc` cannot be read.
    pub fn sample(&mut self, now: Instant, freed_by_us: u64) -> Result<()> {
        if self.facts_at.is_none_or(|at| now - at >= RARELY) {
            let meminfo = self.proc.meminfo()?;
            self.memory.total = meminfo.mem_total;
            self.swap_on = meminfo.swap_total > 0;
            self.memory.low_watermark = self.proc.zoneinfo()?.sum().low * PAGE_SIZE;
            self.facts_at = Some(now);
        }
        let vmstat = self.proc.vmstat()?;
        let stolen = (vmstat.pgsteal_kswapd + vmstat.pgsteal_direct) * PAGE_SIZE;
        if let Some((at, before)) = self.refilled {
            let refilled = stolen.saturating_sub(before).saturating_add(freed_by_us);
            self.refilling = decayed(self.refilling, refilled, now - at);
        }
        self.refilled = Some((now, stolen));
        self.poll(now);
        self.file = vmstat.file_lru();
        self.unreclaimable = (vmstat.nr_dirty + vmstat.nr_writeback) * PAGE_SIZE;
        Ok(())
    }

    /// The memory as last read.
    #[must_use]
    pub const fn memory(&self) -> Memory {
        self.memory
    }

    /// Whether anonymous memory could be swapped out.
    #[must_use]
    pub const fn swap_on(&self) -> bool {
        self.swap_on
    }

    /// File pages on LRU lists, whole machine, bytes.
    #[must_use]
    pub const fn file(&self) -> u64 {
        self.file
    }

    /// Dirty and writeback pages, whole machine, bytes.
    #[must_use]
    pub const fn unreclaimable(&self) -> u64 {
        self.unreclaimable
    }
}

/// The rate at which memory is used up: the latest, or what is left of an earlier, higher one (half of it every
/// 250 ms), so that a gap between two bursts does not look like the end.
fn decayed(before: u64, used: u64, time: Duration) -> u64 {
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
        assert_eq!(decayed(0, 10_000, ms(100)), 100_000);
        assert_eq!(decayed(100_000, 0, ms(100)), 100_000);
        assert_eq!(decayed(100_000, 0, ms(500)), 25_000);
        assert_eq!(decayed(100_000, 0, Duration::from_secs(3600)), 0);
        assert_eq!(decayed(u64::MAX, u64::MAX, Duration::ZERO), u64::MAX);
    }
}
