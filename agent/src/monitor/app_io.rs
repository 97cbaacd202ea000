//! The I/O of applications: the counters of the kernel probes, read at a bounded cost.

use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::time::{Duration, Instant};

use justitia_kernel::capabilities::State;
use justitia_kernel::cgroup::CgroupId;
use justitia_kernel::probes::{CURVE_BYTES, Counters, IoProbes, Limits, ProbeSample, SharedInode};
use justitia_kernel::psi::PsiResource;

use super::cpu_budget::thread_cpu;
use super::rate_window::{RateWindows, WindowStats, app_io};
use crate::device::{AppIo, AppIoSource, DiskActivity};
use crate::page_cache::{CgroupTree, ReuseSampler};

/// The least time between two readings of the probes.
const PERIOD: Duration = Duration::from_millis(200);
/// [`AppIoMonitor::sample_now`] does not repeat a younger sample.
const FRESH: Duration = Duration::from_millis(50);
/// The period of reading the I/O pressure (PSI) of tenants that move bytes.
const PSI_PERIOD: Duration = Duration::from_secs(1);
/// The pressure of all tenants is read once in this many times: one that moves nothing may be starved.
const PSI_ALL: u64 = 4;
/// The fraction of one CPU for reading the probes. Beyond it they are read less often.
const MAX_CPU: f64 = 0.005;
/// Why the I/O of applications is unknown until the probes are attached.
const ATTACHING: &str = "the probes are being attached";

/// The probes, and their recent counts.
pub struct AppIoMonitor {
    probes: Option<IoProbes>,
    /// Receives the monitor with probes, while a thread attaches them.
    attaching: Option<Receiver<Self>>,
    /// Why the probes cannot be read, if so.
    unavailable: Option<String>,
    windows: RateWindows,
    /// When the probes were last read.
    sampled_at: Option<Instant>,
    due: Option<Instant>,
    psi_due: Option<Instant>,
    psi_rounds: u64,
    limits: Limits,
    /// The last sample, without its cgroups.
    sample: ProbeSample,
    errors: u64,
}

impl std::fmt::Debug for AppIoMonitor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AppIoMonitor")
            .field("unavailable", &self.unavailable)
            .field("errors", &self.errors)
            .finish_non_exhaustive()
    }
}

impl AppIoMonitor {
    /// Attaches the probes.
    #[must_use]
    pub fn attach(limits: &Limits) -> Self {
        let system = rustix::system::sysinfo();
        let memory = system.totalram.saturating_mul(u64::from(system.mem_unit));
        let limits = &affordable(limits, memory);
        let probes = match IoProbes::attach(limits) {
            Ok(probes) => probes,
            Err(error) => return Self::unavailable(&error.to_string()),
        };
        Self {
            probes: Some(probes),
            limits: *limits,
            unavailable: None,
            ..Self::unavailable("")
        }
    }

    /// As [`attach`](Self::attach), in a thread of its own: the kernel verifies every program, which takes a tenth of a second
    /// of CPU time, and many seconds in an emulated machine. [`sample`](Self::sample) uses the probes once they are attached.
    #[must_use]
    pub fn attach_meanwhile(limits: &Limits) -> Self {
        let limits = *limits;
        Self::meanwhile(move || Self::attach(&limits))
    }

    /// The monitor that `attach` returns, once it has returned.
    pub(crate) fn meanwhile(attach: impl FnOnce() -> Self + Send + 'static) -> Self {
        let (sender, receiver) = channel();
        let thread = std::thread::Builder::new().name("attach".to_owned());
        // An agent that has ended meanwhile needs no probes.
        let started = thread.spawn(move || drop(sender.send(attach())));
        match started {
            Ok(_) => Self {
                attaching: Some(receiver),
                ..Self::unavailable(ATTACHING)
            },
            Err(error) => {
                Self::unavailable(&format!("starting a thread to attach probes: {error}"))
            }
        }
    }

    /// Whether the probes are still being attached.
    #[must_use]
    pub const fn is_attaching(&self) -> bool {
        self.attaching.is_some()
    }

    /// Adopts the probes, if they have been attached meanwhile.
    fn take_attached(&mut self) {
        let Some(attaching) = &self.attaching else {
            return;
        };
        match attaching.try_recv() {
            Ok(attached) => {
                *self = attached;
                let absent = self.limitations();
                match &self.unavailable {
                    Some(why) => tracing::warn!(
                        why,
                        "the probes were not loaded: what applications get is not known"
                    ),
                    None if absent.is_empty() => tracing::info!("the probes are loaded"),
                    None => tracing::warn!(
                        absent = absent.len(),
                        "the probes are loaded but for some: `justitia status` says which, and why"
                    ),
                }
            }
            Err(TryRecvError::Empty) => {}
            Err(TryRecvError::Disconnected) => {
                *self = Self::unavailable("attaching the probes failed: see the agent's log");
            }
        }
    }

    /// Without probes, for the reason `why`.
    #[must_use]
    pub fn unavailable(why: &str) -> Self {
        Self {
            probes: None,
            attaching: None,
            limits: Limits::default(),
            unavailable: Some(why.to_owned()),
            windows: RateWindows::default(),
            sampled_at: None,
            due: None,
            psi_due: None,
            psi_rounds: 0,
            sample: ProbeSample::default(),
            errors: 0,
        }
    }

    /// Why the I/O of applications is unknown, if so.
    #[must_use]
    pub fn unavailable_reason(&self) -> Option<&str> {
        self.unavailable.as_deref()
    }

    /// The paths that the probes cannot count on this kernel, each with the reason.
    #[must_use]
    pub fn limitations(&self) -> Vec<String> {
        let Some(probes) = &self.probes else {
            let why = self.unavailable.iter();
            return why
                .map(|why| format!("What applications get is not known: {why}"))
                .collect();
        };
        let status = probes.status();
        let absent = status.iter().filter(|probe| probe.state == State::No);
        absent
            .map(|absent| {
                let (title, reason) = (absent.probe.title(), &absent.reason);
                format!("What applications get: {title} ({reason})")
            })
            .collect()
    }

    /// The events that the probes have dropped so far; none without probes.
    #[must_use]
    pub fn drops(&self) -> Vec<ProbeDrop> {
        let Some(probes) = &self.probes else {
            return Vec::new();
        };
        // `errors` counts those that cannot be read.
        drops(
            &self.limits,
            &self.sample,
            probes.dropped_uses().unwrap_or(0),
        )
    }

    /// The number of failed readings of the probes.
    #[must_use]
    pub const fn errors(&self) -> u64 {
        self.errors
    }

    /// Reads the probes, if due.
    pub fn sample(&mut self, cgroups: &CgroupTree, now: Instant) {
        self.take_attached();
        if self.due.is_some_and(|due| due > now) {
            return;
        }
        let Some(mut probes) = self.probes.take() else {
            return;
        };
        self.sampled_at = Some(now);
        let begun = thread_cpu();
        match probes.sample() {
            Ok(sample) => self.record(&mut probes, sample, cgroups, now),
            Err(error) => {
                self.errors += 1;
                let error = error.to_string();
                if self.unavailable.as_deref() != Some(&error) {
                    tracing::warn!(error, "the probes cannot be read");
                    self.unavailable = Some(error);
                }
            }
        }
        self.probes = Some(probes);
        let cost = thread_cpu().saturating_sub(begun);
        self.due = Some(now + PERIOD.max(cost.div_f64(MAX_CPU)));
    }

    fn record(
        &mut self,
        probes: &mut IoProbes,
        mut sample: ProbeSample,
        cgroups: &CgroupTree,
        now: Instant,
    ) {
        self.unavailable = None;
        let psi_due = self.psi_due.is_none_or(|due| due <= now);
        if psi_due {
            self.psi_due = Some(now + PSI_PERIOD);
            self.psi_rounds += 1;
            probes.retain(|id| cgroups.get(id).is_some());
        }
        let all = self.psi_rounds.is_multiple_of(PSI_ALL);
        for (id, counters) in std::mem::take(&mut sample.cgroups) {
            let Some(node) = cgroups.get(id) else {
                continue;
            };
            let read_psi = psi_due && (all || self.windows.has_changed(id, &counters));
            // `None` without PSI.
            let stalled = read_psi
                .then(|| node.cgroup.pressure(PsiResource::Io).ok())
                .flatten()
                .map(|psi| psi.some.total);
            self.windows.record(id, counters, stalled, now);
        }
        self.sample = sample;
    }

    /// Reads the probes, due or not, unless the last sample is fresh.
    pub fn sample_now(&mut self, cgroups: &CgroupTree, now: Instant) {
        if self.sampled_at.is_none_or(|at| now - at >= FRESH) {
            self.due = None;
            self.sample(cgroups, now);
        }
    }

    /// Reads reuse times of sampled accesses, when due and as the cost allows. `capacity` is the page cache that can be
    /// divided, bytes.
    pub fn sample_reuse(
        &mut self,
        reuse: &mut ReuseSampler,
        cgroups: &CgroupTree,
        capacity: u64,
        now: Instant,
    ) {
        if let Some(probes) = &mut self.probes
            && probes.curve_count() > 0
        {
            reuse.sample(probes, cgroups, capacity, now);
        }
    }

    /// Starts or stops watching for files that tenants read whose pages others are charged for.
    ///
    /// # Errors
    /// Why the probes cannot do so here.
    pub fn watch_shared_files(&mut self, on: bool) -> Result<(), String> {
        let probes = self
            .probes
            .as_mut()
            .ok_or_else(|| self.unavailable.clone().unwrap_or_default())?;
        probes.trace_shared_inodes(on).map_err(|e| e.to_string())
    }

    /// The up to `max` files with most such reads since watching started.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn shared_files(&self, max: usize) -> Result<Vec<SharedInode>, String> {
        let probes = self.probes.as_ref().ok_or("no probes")?;
        probes.shared_inodes(max).map_err(|e| e.to_string())
    }

    /// Forgets a removed cgroup.
    pub fn remove(&mut self, id: CgroupId) {
        self.windows.remove(id);
        if let Some(probes) = &mut self.probes
            && probes.forget_removed(&[id]).is_err()
        {
            self.errors += 1;
        }
    }

    /// A tenant's counters over the window that ends now; `None` if the probes cannot be read.
    #[must_use]
    pub fn stats(&self, id: CgroupId, now: Instant) -> Option<WindowStats> {
        self.unavailable
            .is_none()
            .then(|| self.windows.stats(id, now))
    }

    /// The probes, if they can be read.
    fn readable(&self) -> Option<&IoProbes> {
        self.probes.as_ref().filter(|_| self.unavailable.is_none())
    }

    #[cfg(test)]
    pub(crate) fn record_counters(&mut self, id: CgroupId, counters: Counters, now: Instant) {
        self.windows.record(id, counters, None, now);
    }

    #[cfg(test)]
    pub(crate) fn has_counters(&self, id: CgroupId) -> bool {
        self.windows.has(id)
    }
}

impl AppIoSource for AppIoMonitor {
    fn disk_activity(&self, id: CgroupId) -> Option<DiskActivity> {
        self.readable().map(|_| self.windows.disk_activity(id))
    }

    /// 0 before the first I/O.
    fn app_io(&self, id: CgroupId) -> Option<AppIo> {
        let counters: Option<Counters> = self.readable()?.counters_of(id);
        Some(counters.map_or(AppIo::default(), |counters| app_io(&counters)))
    }

    fn app_io_lately(&self, id: CgroupId, now: Instant) -> Option<AppIo> {
        self.readable()?;
        let age = now.saturating_duration_since(self.sampled_at.unwrap_or(now));
        Some(AppIo {
            age,
            ..self.windows.app_io(id)
        })
    }
}

/// The limits, reduced on a machine with little memory. Curves take a five-hundredth of it, requests in flight and shared files
/// a four-thousandth each, but at least the need of a few tenants.
fn affordable(limits: &Limits, memory: u64) -> Limits {
    let most = |part: u64, bytes: u64, least: u32| {
        u32::try_from(memory / part / bytes).map_or(u32::MAX, |most| most.max(least))
    };
    Limits {
        max_cgroups: limits.max_cgroups,
        // Two maps, of some 100 bytes a request.
        max_inflight: limits.max_inflight.min(most(4096, 200, 1024)),
        max_shared_files: limits.max_shared_files.min(most(4096, 300, 512)),
        max_curves: limits.max_curves.min(most(512, CURVE_BYTES, 64)),
    }
}

// Dropped events, and the settings that avoid them.

/// One kind of dropped events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProbeDrop {
    /// The kind, as a label.
    pub what: &'static str,
    /// The number since the probes were attached.
    pub count: u64,
    /// The same for people.
    pub text: String,
}

/// All kinds, including those without drops. `uses` is
/// [`IoProbes::dropped_uses`](justitia_kernel::probes::IoProbes::dropped_uses).
pub(super) fn drops(limits: &Limits, sample: &ProbeSample, uses: u64) -> Vec<ProbeDrop> {
    let full = format!(
        "the map has {} entries, one a cgroup (probes.max_cgroups)",
        limits.max_cgroups
    );
    let ProbeSample {
        dropped_events,
        map_full,
        map_busy,
        ..
    } = sample;
    [
        (
            "events",
            *dropped_events,
            format!("What applications get: {dropped_events} events could not be counted"),
        ),
        (
            "map_full",
            *map_full,
            format!("What applications get: {map_full} events count for no tenant; {full}"),
        ),
        (
            "map_busy",
            *map_busy,
            format!(
                "What applications get: {map_busy} events count for no tenant; the map was locked by another CPU"
            ),
        ),
        (
            "shared_file_evicted",
            uses,
            format!(
                "Shared files: {uses} uses were evicted; the map has {} entries (probes.max_shared_files)",
                limits.max_shared_files
            ),
        ),
    ]
    .map(|(what, count, text)| ProbeDrop { what, count, text })
    .into()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Until attaching has ended, or long enough to say that it does not.
    fn wait(monitor: &mut AppIoMonitor) {
        for _ in 0..10_000 {
            monitor.take_attached();
            if !monitor.is_attaching() {
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn tables_take_little_of_a_small_machine() {
        let limits = Limits::default();
        let of = |memory: u64| {
            let got = affordable(&limits, memory);
            (got.max_inflight, got.max_shared_files, got.max_curves)
        };
        assert_eq!(of(256 << 20), (1024, 512, 64));
        assert_eq!(
            of(1 << 30),
            (
                1310,
                873,
                (1 << 30) / 512 / u32::try_from(CURVE_BYTES).unwrap()
            )
        );
        assert_eq!(of(64 << 30), (16_384, 4096, 1024));
    }

    #[test]
    fn it_is_there_before_the_probes_and_takes_them_when_they_come() {
        let (allow, allowed) = channel::<()>();
        let mut monitor = AppIoMonitor::meanwhile(move || {
            let _ = allowed.recv();
            AppIoMonitor::unavailable("attached")
        });
        monitor.take_attached();
        assert_eq!(monitor.unavailable_reason(), Some(ATTACHING));
        assert_eq!(monitor.watch_shared_files(true), Err(ATTACHING.to_owned()));
        drop(allow);
        wait(&mut monitor);
        assert_eq!(monitor.unavailable_reason(), Some("attached"));
    }

    #[test]
    fn a_failure_to_attach_is_told() {
        let mut monitor = AppIoMonitor::meanwhile(|| std::panic::resume_unwind(Box::new(())));
        wait(&mut monitor);
        let why = monitor.unavailable_reason().unwrap_or_default();
        assert!(why.contains("failed"), "{why}");
    }

    #[test]
    fn each_drop_is_reported_by_its_cause_alone() {
        let limits = Limits {
            max_cgroups: 16,
            max_shared_files: 64,
            ..Limits::default()
        };
        let none = ProbeSample::default();
        let with = |change: fn(&mut ProbeSample)| {
            let mut sample = none.clone();
            change(&mut sample);
            sample
        };
        let full = "7 events count for no tenant; the map has 16 entries, one a cgroup (probes.max_cgroups)";
        let evicted = "7 uses were evicted; the map has 64 entries (probes.max_shared_files)";
        let busy = "7 events count for no tenant; the map was locked";
        let cases = [
            (
                with(|s| s.dropped_events = 7),
                0,
                "7 events could not be counted",
            ),
            (with(|s| s.map_full = 7), 0, full),
            (with(|s| s.map_busy = 7), 0, busy),
            (none.clone(), 7, evicted),
        ];
        for (sample, uses, expected) in cases {
            let all = drops(&limits, &sample, uses);
            let some: Vec<_> = all.iter().filter(|drop| drop.count > 0).collect();
            assert!(
                matches!(some[..], [ProbeDrop { count: 7, text, .. }] if text.contains(expected)),
                "expected {expected:?} alone, found {some:?}"
            );
        }
        assert!(drops(&limits, &none, 0).iter().all(|d| d.count == 0));
    }
}
