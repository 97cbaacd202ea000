//! The host's memory, and how fast it is consumed.

use std::time::{Duration, Instant};

use justitia_kernel::proc::ProcFs;
use justitia_kernel::{PAGE_SIZE, Result};
use justitia_share::HalfLife;
use justitia_share::num::{to_f64, to_u64};

use super::entitlements::LONGEST_REACTION;
use super::memory_sampler::DecayingCount;
use crate::model::{COST_HALF_LIFE, Memory};

/// The period of reading values that rarely change: total memory, `vm.swappiness`, and watermarks while memory suffices.
const SLOW_PERIOD: Duration = Duration::from_secs(10);
/// The period of reading the zones while free memory is short. With hundreds of CPUs that takes a millisecond.
const ZONES_PERIOD: Duration = Duration::from_secs(1);
/// Free memory is short below this multiple of the watermark that wakes kswapd.
const SHORT: u64 = 4;
/// Rates are measured over at least this time. Over less, one allocation looks like gigabytes a second.
const MIN_RATE_PERIOD: Duration = Duration::from_millis(50);
/// The rate of reclaim is measured over at least this time: reclaim comes in requests of megabytes.
const REFILL_PERIOD: Duration = Duration::from_millis(500);
/// A rate that is not reached again halves in this time, so that a gap between two bursts does not look like their end.
const RATE_HALF_LIFE: HalfLife = HalfLife::new(Duration::from_millis(250));

/// Samples `/proc/vmstat` and similar files.
#[derive(Debug)]
pub struct SystemMemory {
    proc: ProcFs,
    memory: Memory,
    swap_total: u64,
    swap_free: u64,
    /// `vm.swappiness`, as last read.
    swappiness: u8,
    /// File pages that came back after reclaim.
    refaulted: DecayingCount,
    slow_at: Option<Instant>,
    zones_at: Option<Instant>,
    /// The start of the measurement of free memory's fall, and free memory then, bytes.
    polled: Option<(Instant, u64)>,
    /// The start of the measurement of reclaim, and the sum of the counters then, bytes.
    reclaimed: Option<(Instant, u64)>,
    /// Bytes that this agent's reclaim of cgroups has freed since then.
    freed_by_us: u64,
    /// How fast free memory falls, bytes per second.
    fall_rate: u64,
    /// How fast reclaim refills it, bytes per second.
    refill_rate: u64,
    /// The longest recent reaction time, and when that reaction ended.
    reaction: Option<(Duration, Instant)>,
    slab: u64,
    paged_in: u64,
    unreclaimable: u64,
}

impl SystemMemory {
    /// The host of this `/proc`.
    #[must_use]
    pub fn new(proc: ProcFs) -> Self {
        Self {
            proc,
            memory: Memory::default(),
            swap_total: 0,
            swap_free: 0,
            swappiness: 0,
            refaulted: DecayingCount::default(),
            slow_at: None,
            zones_at: None,
            polled: None,
            reclaimed: None,
            freed_by_us: 0,
            fall_rate: 0,
            refill_rate: 0,
            reaction: None,
            slab: 0,
            paged_in: 0,
            unreclaimable: 0,
        }
    }

    /// Reads the free memory and swap only. That takes a few microseconds, so it can be done often.
    pub fn poll(&mut self, now: Instant) {
        let info = rustix::system::sysinfo();
        let free = info.freeram.saturating_mul(u64::from(info.mem_unit));
        self.memory.free = free;
        let unit = u64::from(info.mem_unit);
        self.swap_total = info.totalswap.saturating_mul(unit);
        self.swap_free = info.freeswap.saturating_mul(unit);
        match self.polled {
            Some((at, _)) if now - at < MIN_RATE_PERIOD => return,
            Some((at, before)) => {
                let used = before.saturating_sub(free);
                self.fall_rate = decaying_peak(self.fall_rate, used, now - at);
            }
            None => {}
        }
        self.polled = Some((now, free));
    }

    /// Reads everything. `freed_by_us`: bytes that this agent's reclaim of cgroups has freed since the last call. The global
    /// counters do not include it.
    ///
    /// # Errors
    /// If `/proc` cannot be read.
    pub fn sample(&mut self, now: Instant, freed_by_us: u64) -> Result<()> {
        if self.slow_at.is_none_or(|at| now - at >= SLOW_PERIOD) {
            self.memory.total = self.proc.meminfo()?.mem_total;
            self.swappiness = self.proc.swappiness().unwrap_or(0);
            self.slow_at = Some(now);
        }
        self.read_zones(now)?;
        let vmstat = self.proc.vmstat()?;
        let stolen = vmstat.pgsteal_kswapd + vmstat.pgsteal_direct + vmstat.pgsteal_proactive;
        self.note_reclaimed(stolen * PAGE_SIZE, freed_by_us, now);
        self.poll(now);
        self.refaulted
            .record(vmstat.workingset_refault_file * PAGE_SIZE, now);
        self.slab = vmstat.nr_slab_reclaimable * PAGE_SIZE;
        self.memory.cache = vmstat.file_lru() + self.slab;
        self.paged_in = vmstat.file_lru() + vmstat.pgsteal_file * PAGE_SIZE;
        self.memory.unmapped = vmstat.unmapped();
        self.memory.free_at_sample = self.memory.free;
        self.unreclaimable = (vmstat.nr_dirty + vmstat.nr_writeback) * PAGE_SIZE;
        Ok(())
    }

    /// Reads the watermarks, more often while free memory is short: its distribution over the zones changes then.
    fn read_zones(&mut self, now: Instant) -> Result<()> {
        let short = self.memory.free < SHORT * self.memory.high_watermark;
        let period = if short { ZONES_PERIOD } else { SLOW_PERIOD };
        if self.zones_at.is_some_and(|at| now - at < period) {
            return Ok(());
        }
        match self.proc.zoneinfo() {
            Ok(zones) => {
                let marks = zones.marks();
                self.memory.low_watermark = marks.low * PAGE_SIZE;
                self.memory.high_watermark = marks.high * PAGE_SIZE;
                self.zones_at = Some(now);
                Ok(())
            }
            // Each reading opens the file. Without a free file descriptor the earlier watermarks are used.
            Err(error) if self.zones_at.is_some() => {
                tracing::debug!(%error, "the watermarks of before are used");
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    /// Records the bytes that the kernel's reclaim has freed so far, and this agent's since the last call.
    fn note_reclaimed(&mut self, stolen: u64, freed_by_us: u64, now: Instant) {
        self.freed_by_us += freed_by_us;
        match self.reclaimed {
            Some((at, _)) if now - at < REFILL_PERIOD => return,
            Some((at, before)) => {
                let freed = stolen.saturating_sub(before) + self.freed_by_us;
                self.refill_rate = decaying_peak(self.refill_rate, freed, now - at);
            }
            None => {}
        }
        self.reclaimed = Some((now, stolen));
        self.freed_by_us = 0;
    }

    /// Records the time from a sample to the end of the reclaim that the next sample requested. The longest counts, and halves
    /// every [`COST_HALF_LIFE`]. At most [`LONGEST_REACTION`] is remembered: one that hung would count for minutes.
    pub fn note_reaction(&mut self, took: Duration, now: Instant) {
        let took = took.max(self.reaction(now)).min(LONGEST_REACTION);
        self.reaction = Some((took, now));
    }

    fn reaction(&self, now: Instant) -> Duration {
        self.reaction.map_or(Duration::ZERO, |(took, at)| {
            took.mul_f64(COST_HALF_LIFE.decay(now.saturating_duration_since(at)))
        })
    }

    /// The memory as last read. [`Memory::reclaim_in_flight`] is 0.
    #[must_use]
    pub fn memory(&self, now: Instant) -> Memory {
        Memory {
            fall_rate: self.fall_rate,
            refill_rate: self.refill_rate,
            reaction: self.reaction(now),
            refaulted: self.refaulted.recent(now),
            swappiness: if self.swap_free > 0 {
                self.swappiness
            } else {
                0
            },
            ..self.memory
        }
    }

    /// Whether there is swap space.
    #[must_use]
    pub const fn swap_on(&self) -> bool {
        self.swap_total > 0
    }

    /// Free swap space, bytes.
    #[must_use]
    pub const fn swap_free(&self) -> u64 {
        self.swap_free
    }

    /// File pages on LRU lists and reclaimable slab, whole host, bytes.
    #[must_use]
    pub const fn cache(&self) -> u64 {
        self.memory.cache
    }

    /// Reclaimable slab, whole host, bytes.
    #[must_use]
    pub const fn slab(&self) -> u64 {
        self.slab
    }

    /// The page-ins of the whole host without deleted pages: file pages on LRU lists, and those that were reclaimed, bytes.
    #[must_use]
    pub const fn paged_in(&self) -> u64 {
        self.paged_in
    }

    /// Dirty and writeback pages, whole host, bytes.
    #[must_use]
    pub const fn unreclaimable(&self) -> u64 {
        self.unreclaimable
    }
}

/// The rate of `used` bytes in `time`, or the remainder of an earlier, higher rate `before`, which halves every
/// [`RATE_HALF_LIFE`]. Bytes per second.
fn decaying_peak(before: u64, used: u64, time: Duration) -> u64 {
    let time = time.max(MIN_RATE_PERIOD);
    let (seconds, decay) = (time.as_secs_f64(), RATE_HALF_LIFE.decay(time));
    to_u64((to_f64(used) / seconds).max(to_f64(before) * decay))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As without a free file descriptor.
    #[test]
    fn watermarks_that_cannot_be_read_again_stay() {
        let dir = tempfile::tempdir().unwrap();
        for file in ["meminfo", "vmstat", "zoneinfo"] {
            std::fs::copy(format!("/proc/{file}"), dir.path().join(file)).unwrap();
        }
        let mut memory = SystemMemory::new(ProcFs::open(dir.path()).unwrap());
        let begin = Instant::now();
        memory.sample(begin, 0).unwrap();
        let known = memory.memory(begin).high_watermark;
        assert!(known > 0);
        std::fs::rename(dir.path().join("zoneinfo"), dir.path().join("aside")).unwrap();
        memory.sample(begin + SLOW_PERIOD, 0).unwrap();
        assert_eq!(memory.memory(begin).high_watermark, known);
        // Without earlier ones it is an error.
        let mut unknown = SystemMemory::new(ProcFs::open(dir.path()).unwrap());
        assert!(unknown.sample(begin, 0).is_err());
    }

    /// As from the unmanaged tenant.
    #[test]
    fn what_is_reclaimed_from_the_root_is_consumed_too() {
        let dir = tempfile::tempdir().unwrap();
        for file in ["meminfo", "zoneinfo"] {
            std::fs::copy(format!("/proc/{file}"), dir.path().join(file)).unwrap();
        }
        let begin = Instant::now();
        for by in ["kswapd", "direct", "proactive"] {
            let counted = |pages: u64| {
                let text = format!("nr_free_pages 100\npgsteal_{by} {pages}\n");
                std::fs::write(dir.path().join("vmstat"), text).unwrap();
            };
            counted(1000);
            let mut memory = SystemMemory::new(ProcFs::open(dir.path()).unwrap());
            memory.sample(begin, 0).unwrap();
            counted(3000);
            let later = begin + Duration::from_secs(1);
            memory.sample(later, 0).unwrap();
            let rate = memory.memory(later).refill_rate;
            assert_eq!(rate, 2000 * PAGE_SIZE, "{by}");
        }
    }

    #[test]
    fn the_longest_reaction_counts_and_fades() {
        let mut memory = SystemMemory::new(ProcFs::open("/proc".as_ref()).unwrap());
        let (begin, ms) = (Instant::now(), Duration::from_millis);
        memory.note_reaction(ms(400), begin);
        memory.note_reaction(ms(100), begin);
        assert_eq!(memory.memory(begin).reaction, ms(400));
        let later = begin + COST_HALF_LIFE.get();
        memory.note_reaction(ms(100), later);
        assert_eq!(memory.memory(later).reaction, ms(200));
        // As of a file system whose server did not answer.
        memory.note_reaction(ms(600_000), later);
        let later = later + COST_HALF_LIFE.get();
        assert_eq!(memory.memory(later).reaction, LONGEST_REACTION / 2);
    }

    #[test]
    fn a_burst_fades() {
        let ms = Duration::from_millis;
        assert_eq!(decaying_peak(0, 10_000, ms(100)), 100_000);
        assert_eq!(decaying_peak(100_000, 0, ms(250)), 50_000);
        assert_eq!(decaying_peak(100_000, 0, ms(500)), 25_000);
        assert_eq!(decaying_peak(100_000, 0, Duration::from_secs(3600)), 0);
        assert_eq!(decaying_peak(u64::MAX, u64::MAX, Duration::ZERO), u64::MAX);
    }

    #[test]
    fn a_burst_fades_however_often_memory_is_read() {
        for millis in [50, 60, 100, 240, 250] {
            let reads = 1000_u64.div_ceil(millis);
            let after = (0..reads).fold(1 << 30, |rate, _| {
                decaying_peak(rate, 0, Duration::from_millis(millis))
            });
            assert!(after <= 1 << 26, "every {millis} ms: {after}");
        }
    }

    /// The loop reads free memory twice in a tick.
    #[test]
    fn a_rate_is_not_measured_between_two_reads_at_one_time() -> Result<()> {
        let mut system = SystemMemory::new(ProcFs::open(std::path::Path::new("/proc"))?);
        let now = Instant::now();
        system.poll(now);
        system.polled = Some((now, u64::MAX));
        system.poll(now + Duration::from_millis(1));
        assert_eq!(system.memory(now).consumption_rate(), 0);
        system.poll(now + MIN_RATE_PERIOD);
        assert!(system.memory(now).consumption_rate() > 0);
        Ok(())
    }

    /// Plans may be 20 ms apart: a request that is freed within one of them is no rate.
    #[test]
    fn reclaim_is_measured_over_half_a_second() -> Result<()> {
        let mut system = SystemMemory::new(ProcFs::open(std::path::Path::new("/proc"))?);
        let now = Instant::now();
        let at = |ms| now + Duration::from_millis(ms);
        for (ms, stolen, by_us, rate) in [
            (0, 500, 7, 0),
            (20, 600, 10, 0),
            (40, 700, 10, 0),
            (500, 1000, 30, 1100),
            (520, 1000, 0, 1100),
        ] {
            system.note_reclaimed(stolen, by_us, at(ms));
            assert_eq!(system.memory(now).consumption_rate(), rate, "{ms} ms");
        }
        Ok(())
    }
}
