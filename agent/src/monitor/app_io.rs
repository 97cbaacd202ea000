//! Looking at what applications get, through the probes in the kernel, at a bounded cost.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use justitia_kernel::capabilities::State;
use justitia_kernel::cgroup::CgroupId;
#[cfg(test)]
use justitia_kernel::probes::Counters;
use justitia_kernel::probes::{Histogram, IoProbes, Latencies, Limits, Sample, SharedInode};
use justitia_kernel::psi::PsiResource;
use justitia_share::num::to_f64;

use super::cgroup_tree::CgroupTree;
use super::cpu_budget::thread_cpu;
use super::device::{AppBytes, AppIoSource};
use super::probe_drops::{ProbeDrop, drops};
use super::rate_window::{RateWindows, WINDOW, WindowStats, bytes};
use super::reuse_sampler::ReuseSampler;
use justitia_api::LatencyStatus;

/// The probes are read this often, at the agent's turns.
const PERIOD: Duration = Duration::from_millis(200);
/// What was read so long ago is still new to who asks.
const FRESH: Duration = Duration::from_millis(50);
/// How often a tenant's stalls are read, while it moves bytes.
const STALLS: Duration = Duration::from_secs(1);
/// Each time in so many, those of tenants that move nothing are read too: they may be starved.
const ALL_STALLS: u64 = 4;
/// The part of one CPU that reading the probes may take; where it takes more, it is done less often.
const MOST: f64 = 0.005;

/// The probes, and what they have shown lately.
pub struct AppIoMonitor {
    eyes: Option<IoProbes>,
    blind: Option<String>,
    flows: RateWindows,
    /// When the probes were last read.
    sampled: Option<Instant>,
    due: Option<Instant>,
    stalls_due: Option<Instant>,
    stall_rounds: u64,
    timing: Option<Timing>,
    room: Limits,
    /// The last, but for its tenants.
    sample: Sample,
    errors: u64,
}

/// How long calls took, window by window.
#[derive(Debug, Default)]
struct Timing {
    at: Option<Instant>,
    sums: HashMap<CgroupId, Latencies>,
    latest: HashMap<CgroupId, LatencyStatus>,
}

impl std::fmt::Debug for AppIoMonitor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AppIoMonitor")
            .field("blind", &self.blind)
            .field("errors", &self.errors)
            .finish_non_exhaustive()
    }
}

impl AppIoMonitor {
    /// Reads what of their accesses is sampled, as far as that is due and its cost allows. `capacity` is what can be
    /// divided, bytes.
    pub fn sample_reuse(
        &mut self,
        reuse: &mut ReuseSampler,
        cgroups: &CgroupTree,
        capacity: u64,
        now: Instant,
    ) {
        if let Some(eyes) = &mut self.eyes
            && eyes.curve_count() > 0
        {
            reuse.turn(eyes, cgroups, capacity, now);
        }
    }

    /// Opens the eyes. With `latency` calls are timed as well, which costs each of them some 100 ns.
    #[must_use]
    pub fn attach(room: &Limits, latency: bool) -> Self {
        let room = &Limits {
            max_curves: room.max_curves.min(affordable()),
            ..*room
        };
        let mut eyes = match IoProbes::attach(room) {
            Ok(eyes) => eyes,
            Err(error) => return Self::unavailable(&error.to_string()),
        };
        let timed = latency.then(|| eyes.trace_latency(true));
        if let Some(Err(error)) = &timed {
            tracing::warn!(%error, "calls are not timed");
        }
        Self {
            eyes: Some(eyes),
            room: *room,
            blind: None,
            timing: timed.is_some_and(|t| t.is_ok()).then(Timing::default),
            ..Self::unavailable("")
        }
    }

    /// Without eyes, and why.
    #[must_use]
    pub fn unavailable(why: &str) -> Self {
        Self {
            eyes: None,
            room: Limits::default(),
            blind: Some(why.to_owned()),
            flows: RateWindows::default(),
            sampled: None,
            due: None,
            stalls_due: None,
            stall_rounds: 0,
            timing: None,
            sample: Sample::default(),
            errors: 0,
        }
    }

    /// Why nothing is known of what applications get, if so.
    #[must_use]
    pub fn unavailable_reason(&self) -> Option<&str> {
        self.blind.as_deref()
    }

    /// What the eyes do not see here, each with the reason.
    #[must_use]
    pub fn limitations(&self) -> Vec<String> {
        let Some(eyes) = &self.eyes else {
            let blind = self.blind.iter();
            return blind
                .map(|why| format!("What applications get is not seen: {why}"))
                .collect();
        };
        let facts = eyes.status();
        let absent = facts.iter().filter(|f| f.state == State::No);
        absent
            .map(|f| format!("What applications get: {} ({})", f.probe.title(), f.reason))
            .collect()
    }

    /// What the eyes lost since they were opened; nothing where they are shut.
    #[must_use]
    pub fn drops(&self) -> Vec<ProbeDrop> {
        let Some(eyes) = &self.eyes else {
            return Vec::new();
        };
        // What cannot be read is told by `errors`.
        drops(&self.room, &self.sample, |probe| {
            eyes.dropped(probe).unwrap_or(0)
        })
    }

    /// How often the probes could not be read.
    #[must_use]
    pub const fn errors(&self) -> u64 {
        self.errors
    }

    /// Reads the probes if it is time.
    pub fn sample(&mut self, cgroups: &CgroupTree, now: Instant) {
        if self.due.is_some_and(|due| due > now) {
            return;
        }
        let Some(eyes) = &mut self.eyes else {
            return;
        };
        self.sampled = Some(now);
        let begun = thread_cpu();
        match eyes.sample() {
            Ok(mut sample) => {
                self.blind = None;
                let read_stalls = self.stalls_due.is_none_or(|due| due <= now);
                if read_stalls {
                    self.stalls_due = Some(now + STALLS);
                    self.stall_rounds += 1;
                    eyes.retain(|id| cgroups.get(id).is_some());
                }
                let all = self.stall_rounds.is_multiple_of(ALL_STALLS);
                for (id, counters) in std::mem::take(&mut sample.cgroups) {
                    let Some(node) = cgroups.get(id) else {
                        continue;
                    };
                    let read = read_stalls && (all || self.flows.moved(id, &counters));
                    // Without PSI the kernel does not say.
                    let stalled = read
                        .then(|| node.cgroup.pressure(PsiResource::Io).ok())
                        .flatten()
                        .map(|psi| psi.some.total);
                    self.flows.take(id, counters, stalled, now);
                }
                self.sample = sample;
            }
            Err(error) => {
                self.errors += 1;
                let error = error.to_string();
                if self.blind.as_deref() != Some(&error) {
                    tracing::warn!(error, "the probes cannot be read");
                    self.blind = Some(error);
                }
            }
        }
        if let (Some(timing), Some(eyes)) = (&mut self.timing, &self.eyes) {
            timing.follow(eyes, now);
        }
        let cost = thread_cpu().saturating_sub(begun);
        self.due = Some(now + PERIOD.max(cost.div_f64(MOST)));
    }

    /// Reads the probes, due or not, unless they were just read.
    pub fn sample_now(&mut self, cgroups: &CgroupTree, now: Instant) {
        if self.sampled.is_none_or(|at| now - at >= FRESH) {
            self.due = None;
            self.sample(cgroups, now);
        }
    }

    /// Begins or ends watching which files are used by others than those who are charged for them.
    ///
    /// # Errors
    /// Why that is not seen here.
    pub fn watch_shared_files(&mut self, on: bool) -> Result<(), String> {
        let eyes = self
            .eyes
            .as_mut()
            .ok_or_else(|| self.blind.clone().unwrap_or_default())?;
        eyes.trace_shared_inodes(on).map_err(|e| e.to_string())
    }

    /// The `most` files most used so since watching began.
    ///
    /// # Errors
    /// What the kernel refused.
    pub fn shared_files(&self, most: usize) -> Result<Vec<SharedInode>, String> {
        let eyes = self.eyes.as_ref().ok_or("no probes")?;
        eyes.shared_inodes(most).map_err(|e| e.to_string())
    }

    /// Forgets a cgroup that is gone.
    pub fn gone(&mut self, id: CgroupId) {
        self.flows.gone(id);
        if let Some(timing) = &mut self.timing {
            timing.sums.remove(&id);
            timing.latest.remove(&id);
        }
        if let Some(eyes) = &mut self.eyes
            && eyes.forget_removed(&[id]).is_err()
        {
            self.errors += 1;
        }
    }

    #[cfg(test)]
    pub(crate) fn saw(&mut self, id: CgroupId, counters: Counters, now: Instant) {
        self.flows.take(id, counters, None, now);
    }

    #[cfg(test)]
    pub(crate) fn keeps(&self, id: CgroupId) -> bool {
        self.flows.keeps(id)
    }

    /// The probes, if they can be read.
    fn open_eyes(&self) -> Option<&IoProbes> {
        self.eyes.as_ref().filter(|_| self.blind.is_none())
    }

    /// A tenant over the window that ends now; `None` where the eyes are shut.
    #[must_use]
    pub fn stats(&self, id: CgroupId, now: Instant) -> Option<WindowStats> {
        self.blind.is_none().then(|| self.flows.stats(id, now))
    }

    /// How long its calls took in the last whole window, where they are timed.
    #[must_use]
    pub fn latency(&self, id: CgroupId) -> Option<LatencyStatus> {
        self.timing.as_ref()?.latest.get(&id).copied()
    }
}

impl AppIoSource for AppIoMonitor {
    fn known(&self, id: CgroupId) -> Option<(u64, bool)> {
        self.open_eyes().map(|_| self.flows.known(id))
    }

    /// 0 before it does I/O.
    fn got(&self, id: CgroupId) -> Option<AppBytes> {
        let counters = self.open_eyes()?.counters_of(id);
        Some(counters.map_or(AppBytes::default(), |counters| AppBytes {
            bytes: bytes(&counters),
            written: counters.written.total().bytes,
        }))
    }
}

impl Timing {
    /// Once a window: what came in it.
    fn follow(&mut self, eyes: &IoProbes, now: Instant) {
        if self.at.is_some_and(|at| now - at < WINDOW) {
            return;
        }
        let Ok(sums) = eyes.latencies() else { return };
        self.at = Some(now);
        self.latest = sums
            .iter()
            .map(|(id, sum)| (*id, quantiles(sum, self.sums.get(id))))
            .collect();
        self.sums = sums;
    }
}

/// How many curves may stand in memory: a five-hundredth of it, and at least enough for a few tenants.
fn affordable() -> u32 {
    const CURVE: u64 = 18_496;
    let system = rustix::system::sysinfo();
    let memory = system.totalram.saturating_mul(u64::from(system.mem_unit));
    u32::try_from(memory / 512 / CURVE)
        .unwrap_or(u32::MAX)
        .max(64)
}

fn quantiles(sum: &Latencies, before: Option<&Latencies>) -> LatencyStatus {
    let seconds = |of: fn(&Latencies) -> &Histogram, quantile: f64| {
        let recent = before.map_or_else(|| *of(sum), |before| of(sum).since(of(before)));
        recent.quantile_ns(quantile).map(|ns| to_f64(ns) / 1e9)
    };
    LatencyStatus {
        read_p50: seconds(|l| &l.read, 0.5),
        read_p99: seconds(|l| &l.read, 0.99),
        write_p50: seconds(|l| &l.write, 0.5),
        write_p99: seconds(|l| &l.write, 0.99),
        sync_p99: seconds(|l| &l.sync, 0.99),
    }
}
