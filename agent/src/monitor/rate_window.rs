//! The counters of applications' I/O, over a window of time.
//!
//! The probes count from their attachment. This module derives rates, ratios, and the [`Activity`] that
//! [`is_backlogged`](justitia_share::fairness_window::is_backlogged) uses.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use justitia_kernel::cgroup::CgroupId;
use justitia_kernel::probes::Counters;
use justitia_share::Fraction;
use justitia_share::fairness_window::Activity;
use justitia_share::num::to_f64;

use crate::device::{AppIo, DiskActivity};

/// The length of the window.
pub const WINDOW: Duration = Duration::from_secs(10);
/// The time between two kept samples: the window has ten of them.
const STEP: Duration = Duration::from_secs(1);

/// The window of one tenant.
#[derive(Debug, Default)]
struct RateWindow {
    samples: VecDeque<RateSample>,
    last: Counters,
    /// Time that tasks were stalled on I/O since the cgroup was created (PSI `some`), microseconds; `None` if unknown.
    stalled: Option<u64>,
}

#[derive(Clone, Copy, Debug)]
struct RateSample {
    at: Instant,
    counters: Counters,
    stalled: Option<u64>,
}

/// A tenant's counters over the window.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct WindowStats {
    /// The window's length so far, seconds.
    pub window: f64,
    /// The counters since the probes were attached.
    pub total: Counters,
    /// The counts in the window.
    pub recent: Counters,
    /// The activity from which the PV is computed.
    pub activity: Activity,
}

/// The windows of all tenants.
#[derive(Debug, Default)]
pub(super) struct RateWindows {
    windows: HashMap<CgroupId, RateWindow>,
}

impl RateWindows {
    /// Records a tenant's counters. `stalled` is the total of its I/O pressure, microseconds, if it was read.
    pub(super) fn record(
        &mut self,
        id: CgroupId,
        counters: Counters,
        stalled: Option<u64>,
        now: Instant,
    ) {
        self.windows
            .entry(id)
            .or_default()
            .record(counters, stalled, now);
    }

    /// Whether a tenant's counters differ from those of a second ago.
    #[must_use]
    pub(super) fn has_changed(&self, id: CgroupId, counters: &Counters) -> bool {
        self.windows
            .get(&id)
            .and_then(|window| window.samples.back())
            .is_none_or(|sample| sample.counters != *counters)
    }

    /// A tenant's disk activity, as of its last counters.
    #[must_use]
    pub(super) fn disk_activity(&self, id: CgroupId) -> DiskActivity {
        let Some(window) = self.windows.get(&id) else {
            return DiskActivity::default();
        };
        let total = disk_events(&window.last);
        let first = window.samples.front();
        DiskActivity {
            total,
            recent: first.is_some_and(|first| disk_events(&first.counters) < total),
        }
    }

    /// The I/O of a tenant's applications, as of its last counters.
    #[must_use]
    pub(super) fn app_io(&self, id: CgroupId) -> AppIo {
        let window = self.windows.get(&id);
        window.map_or_else(AppIo::default, |window| app_io(&window.last))
    }

    /// Forgets a removed cgroup.
    pub(super) fn remove(&mut self, id: CgroupId) {
        self.windows.remove(&id);
    }

    #[cfg(test)]
    pub(crate) fn has(&self, id: CgroupId) -> bool {
        self.windows.contains_key(&id)
    }

    /// A tenant's counters over the window that ends now; zero if it was never recorded.
    #[must_use]
    pub(super) fn stats(&self, id: CgroupId, now: Instant) -> WindowStats {
        self.windows
            .get(&id)
            .and_then(|window| window.stats(now))
            .unwrap_or_default()
    }
}

impl RateWindow {
    fn record(&mut self, counters: Counters, stalled: Option<u64>, now: Instant) {
        self.last = counters;
        self.stalled = stalled.or(self.stalled);
        let due = self.samples.back().is_none_or(|s| now - s.at >= STEP);
        if due {
            self.samples.push_back(RateSample {
                at: now,
                counters,
                stalled: self.stalled,
            });
            // The first sample is the window's beginning: it may be older than the window by a step.
            while self.samples.get(1).is_some_and(|s| now - s.at >= WINDOW) {
                self.samples.pop_front();
            }
        }
    }

    fn stats(&self, now: Instant) -> Option<WindowStats> {
        let first = self.samples.front()?;
        let window = now.saturating_duration_since(first.at);
        let recent = self.last.since(&first.counters);
        let steps = self.samples.len().saturating_sub(1);
        let active = self
            .samples
            .iter()
            .zip(self.samples.iter().skip(1))
            .filter(|(a, b)| bytes(&b.counters) > bytes(&a.counters))
            .count();
        let io_stalled = first
            .stalled
            .zip(self.stalled)
            .filter(|_| window >= STEP)
            .map(|(from, to)| to_f64(to.saturating_sub(from)) / 1e6 / window.as_secs_f64());
        Some(WindowStats {
            window: window.as_secs_f64(),
            total: self.last,
            recent,
            activity: Activity {
                bytes: bytes(&recent),
                active: Fraction::of(count(active), count(steps)),
                io_stalled: io_stalled.map(Fraction::clamped),
                wrote_or_missed: recent.cache_miss_bytes > 0
                    || recent.read.direct.bytes > 0
                    || recent.written.total().bytes > 0,
            },
        })
    }
}

/// The I/O of applications by these counters, read now.
pub(super) const fn app_io(counters: &Counters) -> AppIo {
    AppIo {
        bytes: bytes(counters),
        outstanding: counters.outstanding_ns,
        age: Duration::ZERO,
    }
}

/// Bytes read and written.
const fn bytes(counters: &Counters) -> u64 {
    let (read, written) = (counters.read.total(), counters.written.total());
    read.bytes.saturating_add(written.bytes)
}

/// A number that grows with everything that makes a disk work, now or later: bytes, and events that may move some. Reads from
/// the page cache do not count.
fn disk_events(counters: &Counters) -> u64 {
    [
        counters.cache_miss_bytes,
        counters.read.direct.bytes,
        counters.written.total().bytes,
        counters.demand_misses,
        counters.major_faults,
        counters.throttled_bios,
    ]
    .iter()
    .fold(0, |sum, one| sum.saturating_add(*one))
}

fn count(samples: usize) -> u64 {
    u64::try_from(samples).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use justitia_kernel::probes::Io;
    use justitia_share::fairness_window::is_backlogged;

    const ID: CgroupId = CgroupId(7);

    fn activity(windows: &RateWindows) -> (u64, bool) {
        let DiskActivity { total, recent } = windows.disk_activity(ID);
        (total, recent)
    }

    fn reading(mib: u64, filled: u64) -> Counters {
        let mut counters = Counters::default();
        counters.read.buffered = Io {
            bytes: mib << 20,
            operations: mib,
        };
        counters.cache_miss_bytes = filled << 20;
        counters
    }

    #[test]
    fn stats_cover_the_last_ten_seconds() {
        let (mut windows, t0) = (RateWindows::default(), Instant::now());
        let at = |ms: u64| t0 + Duration::from_millis(ms);
        // 10 MiB/s, all from the device, then 20 MiB/s, all cached; five samples a second.
        for step in 0..=200u64 {
            let before = step.min(100);
            let after = step - before;
            let counters = reading(2 * before + 4 * after, 2 * before);
            windows.record(ID, counters, Some(100_000 * before), at(200 * step));
        }
        let stats = windows.stats(ID, at(40_000));
        assert!((10.0..=11.0).contains(&stats.window), "{}", stats.window);
        let mib_per_s = to_f64(stats.recent.read.buffered.bytes >> 20) / stats.window;
        assert!((mib_per_s - 20.0).abs() < 0.01, "{mib_per_s}");
        assert_eq!(stats.recent.hit_ratio(), Some(1.0));
        assert_eq!(stats.total.read.buffered.bytes >> 20, 600);
        assert!(!is_backlogged(&stats.activity), "satisfied: {stats:?}");
        assert!(windows.windows[&ID].samples.len() <= 12);
        windows.remove(ID);
        assert_eq!(windows.stats(ID, at(40_000)), WindowStats::default());
    }

    #[test]
    fn a_tenant_that_reads_and_waits_is_backlogged_with_psi_or_without() {
        for psi in [true, false] {
            let (mut windows, t0) = (RateWindows::default(), Instant::now());
            let mut now = t0;
            for second in 0..=10 {
                now = t0 + Duration::from_secs(second);
                let stalled = psi.then_some(500_000 * second);
                windows.record(ID, reading(8 * second, 4 * second), stalled, now);
            }
            let stats = windows.stats(ID, now);
            assert!((stats.recent.hit_ratio().unwrap() - 0.5).abs() < 1e-9);
            assert_eq!(stats.activity.io_stalled.is_some(), psi);
            assert!(is_backlogged(&stats.activity), "{stats:?}");
        }
    }

    #[test]
    fn page_cache_hits_are_no_disk_activity() {
        let (mut windows, t0) = (RateWindows::default(), Instant::now());
        assert_eq!(activity(&windows), (0, false));
        for second in 0..3 {
            let now = t0 + Duration::from_secs(second);
            windows.record(ID, reading(second, 0), None, now);
        }
        assert_eq!(activity(&windows), (0, false));
        windows.record(ID, reading(3, 1), None, t0 + Duration::from_secs(3));
        assert_eq!(activity(&windows), (1 << 20, true));
    }

    #[test]
    fn counters_that_start_over_give_no_negative_rate() {
        let (mut windows, t0) = (RateWindows::default(), Instant::now());
        windows.record(ID, reading(100, 0), None, t0);
        let now = t0 + Duration::from_secs(2);
        windows.record(ID, reading(1, 0), None, now);
        assert_eq!(windows.stats(ID, now).recent, Counters::default());
    }
}
