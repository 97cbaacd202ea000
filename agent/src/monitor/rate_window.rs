//! What applications get: their counters over a window of time.
//!
//! The counters come from the probes in the kernel, as sums since the probes were attached; here they become
//! rates, ratios, and the answer to whether a tenant contends.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use justitia_kernel::cgroup::CgroupId;
use justitia_kernel::probes::Counters;
use justitia_share::live::Activity;
use justitia_share::num::to_f64;

/// The window that rates are taken over.
pub const WINDOW: Duration = Duration::from_secs(10);
/// Points are kept this far apart: the window has ten of them.
const STEP: Duration = Duration::from_secs(1);

/// One tenant in the window.
#[derive(Debug, Default)]
struct Flow {
    points: VecDeque<Point>,
    last: Counters,
    /// Time that tasks were held up by I/O, since the cgroup was made, microseconds.
    stalled: Option<u64>,
}

#[derive(Clone, Copy, Debug)]
struct Point {
    at: Instant,
    counters: Counters,
    stalled: Option<u64>,
}

/// A tenant over the window.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct WindowStats {
    /// The window's length so far, seconds.
    pub window: f64,
    /// Everything since the beginning.
    pub total: Counters,
    /// What of it came in the window.
    pub recent: Counters,
    /// For the PV.
    pub activity: Activity,
}

/// All tenants' windows.
#[derive(Debug, Default)]
pub struct RateWindows {
    flows: HashMap<CgroupId, Flow>,
}

impl RateWindows {
    /// Takes a tenant's counters, and the sum of the time in which its tasks were held up by I/O where that is
    /// known.
    pub fn take(&mut self, id: CgroupId, counters: Counters, stalled: Option<u64>, now: Instant) {
        let flow = self.flows.entry(id).or_default();
        flow.last = counters;
        flow.stalled = stalled.or(flow.stalled);
        let due = flow.points.back().is_none_or(|p| now - p.at >= STEP);
        if due {
            let stalled = flow.stalled;
            flow.points.push_back(Point {
                at: now,
                counters,
                stalled,
            });
            // The oldest point is the window's beginning: it may be as old as the window, and a step.
            while flow.points.get(1).is_some_and(|p| now - p.at >= WINDOW) {
                flow.points.pop_front();
            }
        }
    }

    /// Whether a tenant's counters differ from those of a second ago: then its stalls are worth reading.
    #[must_use]
    pub fn moved(&self, id: CgroupId, counters: &Counters) -> bool {
        self.flows
            .get(&id)
            .and_then(|f| f.points.back())
            .is_none_or(|p| p.counters != *counters)
    }

    /// What a tenant had had disks do when its counters were last taken, and whether any of it in the window.
    #[must_use]
    pub fn known(&self, id: CgroupId) -> (u64, bool) {
        self.flows.get(&id).map_or((0, false), |flow| {
            let all = disk(&flow.last);
            let first = flow.points.front();
            (all, first.is_some_and(|p| disk(&p.counters) < all))
        })
    }

    /// Forgets a cgroup that is gone.
    pub fn gone(&mut self, id: CgroupId) {
        self.flows.remove(&id);
    }

    #[cfg(test)]
    pub(crate) fn keeps(&self, id: CgroupId) -> bool {
        self.flows.contains_key(&id)
    }

    /// A tenant over the window that ends now; nothing if it was never seen.
    #[must_use]
    pub fn stats(&self, id: CgroupId, now: Instant) -> WindowStats {
        let Some(flow) = self.flows.get(&id) else {
            return WindowStats::default();
        };
        let (Some(first), last) = (flow.points.front(), flow.last) else {
            return WindowStats::default();
        };
        let window = now.saturating_duration_since(first.at);
        let recent = last.since(&first.counters);
        let steps = flow.points.len().saturating_sub(1);
        let moving = flow
            .points
            .iter()
            .zip(flow.points.iter().skip(1))
            .filter(|(a, b)| bytes(&b.counters) > bytes(&a.counters))
            .count();
        let held_up = first
            .stalled
            .zip(flow.stalled)
            .filter(|_| window >= STEP)
            .map(|(from, to)| to_f64(to.saturating_sub(from)) / 1e6 / window.as_secs_f64());
        WindowStats {
            window: window.as_secs_f64(),
            total: last,
            recent,
            activity: Activity {
                bytes: bytes(&recent),
                active: ratio(moving, steps),
                held_up: held_up.map(|part| part.min(1.0)),
                beyond_cache: recent.cache_miss_bytes > 0
                    || recent.read.direct.bytes > 0
                    || recent.written.total().bytes > 0,
            },
        }
    }
}

/// Bytes read and written.
pub const fn bytes(counters: &Counters) -> u64 {
    let (read, written) = (counters.read.total(), counters.written.total());
    read.bytes.saturating_add(written.bytes)
}

/// Everything that has a disk do something, now or later: bytes, and events that may move some. Reads that the page cache
/// answers do not.
fn disk(counters: &Counters) -> u64 {
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

fn ratio(part: usize, of: usize) -> f64 {
    let float = |n: usize| to_f64(u64::try_from(n).unwrap_or(u64::MAX));
    if of == 0 {
        0.0
    } else {
        float(part) / float(of)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use justitia_kernel::probes::Io;
    use justitia_share::live::contends;

    const ID: CgroupId = CgroupId(7);

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
    fn rates_are_those_of_the_last_ten_seconds() {
        let (mut flows, t0) = (RateWindows::default(), Instant::now());
        let at = |ms: u64| t0 + Duration::from_millis(ms);
        // 10 MiB/s, all from the device, then 20 MiB/s, all cached; five looks a second.
        for step in 0..=200u64 {
            let before = step.min(100);
            let after = step - before;
            let counters = reading(2 * before + 4 * after, 2 * before);
            flows.take(ID, counters, Some(100_000 * before), at(200 * step));
        }
        let rates = flows.stats(ID, at(40_000));
        assert!((10.0..=11.0).contains(&rates.window), "{}", rates.window);
        let mib_per_s = to_f64(rates.recent.read.buffered.bytes >> 20) / rates.window;
        assert!((mib_per_s - 20.0).abs() < 0.01, "{mib_per_s}");
        assert_eq!(rates.recent.hit_ratio(), Some(1.0));
        assert_eq!(rates.total.read.buffered.bytes >> 20, 600);
        assert!(!contends(&rates.activity), "satisfied: {rates:?}");
        assert!(flows.flows[&ID].points.len() <= 12);
        flows.gone(ID);
        assert_eq!(flows.stats(ID, at(40_000)), WindowStats::default());
    }

    #[test]
    fn who_reads_and_waits_contends_with_psi_or_without() {
        for psi in [true, false] {
            let (mut flows, t0) = (RateWindows::default(), Instant::now());
            let mut now = t0;
            for second in 0..=10 {
                now = t0 + Duration::from_secs(second);
                let stalled = psi.then_some(500_000 * second);
                flows.take(ID, reading(8 * second, 4 * second), stalled, now);
            }
            let rates = flows.stats(ID, now);
            assert!((rates.recent.hit_ratio().unwrap() - 0.5).abs() < 1e-9);
            assert_eq!(rates.activity.held_up.is_some(), psi);
            assert!(contends(&rates.activity), "{rates:?}");
        }
    }

    #[test]
    fn what_the_page_cache_answers_is_nothing_to_a_disk() {
        let (mut flows, t0) = (RateWindows::default(), Instant::now());
        assert_eq!(flows.known(ID), (0, false));
        for second in 0..3 {
            let now = t0 + Duration::from_secs(second);
            flows.take(ID, reading(second, 0), None, now);
        }
        assert_eq!(flows.known(ID), (0, false));
        flows.take(ID, reading(3, 1), None, t0 + Duration::from_secs(3));
        assert_eq!(flows.known(ID), (1 << 20, true));
    }

    #[test]
    fn counters_that_begin_anew_are_no_negative_rate() {
        let (mut flows, t0) = (RateWindows::default(), Instant::now());
        flows.take(ID, reading(100, 0), None, t0);
        let now = t0 + Duration::from_secs(2);
        flows.take(ID, reading(1, 0), None, now);
        assert_eq!(flows.stats(ID, now).recent, Counters::default());
    }
}
