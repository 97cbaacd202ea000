//! Looking at what applications get, through the probes in the kernel, at a bounded cost.

use std::time::{Duration, Instant};

use justitia_kernel::cgroup::CgroupId;
use justitia_kernel::psi::PsiResource;

use super::budget::thread_cpu;
use super::flow::{AppCounters, Flows, Rates};
use super::mirror::Mirror;
use crate::tell::status::LatencyStatus;

/// The probes are read this often, at the agent's turns.
const PERIOD: Duration = Duration::from_millis(200);
/// How often a tenant's stalls are read, while it moves bytes.
const STALLS: Duration = Duration::from_secs(1);
/// Each time in so many, those of tenants that move nothing are read too: they may be starved.
const ALL_STALLS: u64 = 4;
/// The part of one CPU that reading the probes may take; where it takes more, it is done less often.
const MOST: f64 = 0.005;

/// Where counters come from.
pub trait Probes: Send {
    /// Every cgroup's counters, as sums since the probes were attached.
    ///
    /// # Errors
    /// What went wrong, for people.
    fn sample(&mut self) -> Result<Vec<(CgroupId, AppCounters)>, String>;

    /// How long a cgroup's operations took lately, where that is measured.
    fn latency(&self, _cgroup: CgroupId) -> Option<LatencyStatus> {
        None
    }

    /// What the probes cannot see on this kernel, each with the reason.
    fn limits(&self) -> Vec<String> {
        Vec::new()
    }
}

/// The probes, and what they have shown lately.
pub struct Sight {
    probes: Option<Box<dyn Probes>>,
    blind: Option<String>,
    flows: Flows,
    due: Option<Instant>,
    stalls_due: Option<Instant>,
    stall_rounds: u64,
    errors: u64,
}

impl std::fmt::Debug for Sight {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sight")
            .field("blind", &self.blind)
            .field("errors", &self.errors)
            .finish_non_exhaustive()
    }
}

impl Sight {
    /// With probes.
    #[must_use]
    pub fn new(probes: Box<dyn Probes>) -> Self {
        Self {
            probes: Some(probes),
            ..Self::blind("")
        }
    }

    /// Without probes, and why.
    #[must_use]
    pub fn blind(why: &str) -> Self {
        Self {
            probes: None,
            blind: (!why.is_empty()).then(|| why.to_owned()),
            flows: Flows::default(),
            due: None,
            stalls_due: None,
            stall_rounds: 0,
            errors: 0,
        }
    }

    /// Why nothing is known of what applications get, if so.
    #[must_use]
    pub fn why_blind(&self) -> Option<&str> {
        self.blind.as_deref()
    }

    /// What the probes cannot see here.
    #[must_use]
    pub fn limits(&self) -> Vec<String> {
        self.probes.as_ref().map(|p| p.limits()).unwrap_or_default()
    }

    /// How often the probes could not be read.
    #[must_use]
    pub const fn errors(&self) -> u64 {
        self.errors
    }

    /// Reads the probes if it is time.
    pub fn sample(&mut self, mirror: &Mirror, now: Instant) {
        if self.due.is_some_and(|due| due > now) {
            return;
        }
        let Some(probes) = &mut self.probes else {
            return;
        };
        let begun = thread_cpu();
        match probes.sample() {
            Ok(counters) => {
                self.blind = None;
                let read_stalls = self.stalls_due.is_none_or(|due| due <= now);
                if read_stalls {
                    self.stalls_due = Some(now + STALLS);
                    self.stall_rounds += 1;
                }
                let all = self.stall_rounds.is_multiple_of(ALL_STALLS);
                for (id, counters) in counters {
                    let Some(node) = mirror.get(id) else { continue };
                    let read = read_stalls && (all || self.flows.moved(id, &counters));
                    // Without PSI the kernel does not say.
                    let stalled = read
                        .then(|| node.cgroup.pressure(PsiResource::Io).ok())
                        .flatten()
                        .map(|psi| psi.some.total);
                    self.flows.take(id, counters, stalled, now);
                }
            }
            Err(error) => {
                self.errors += 1;
                if self.blind.as_deref() != Some(&error) {
                    tracing::warn!(error, "the probes cannot be read");
                    self.blind = Some(error);
                }
            }
        }
        let cost = thread_cpu().saturating_sub(begun);
        self.due = Some(now + PERIOD.max(cost.div_f64(MOST)));
    }

    /// Forgets a cgroup that is gone.
    pub fn gone(&mut self, id: CgroupId) {
        self.flows.gone(id);
    }

    /// What a tenant's applications got over the window; `None` where no probes run.
    #[must_use]
    pub fn rates(&self, id: CgroupId, now: Instant) -> Option<Rates> {
        self.probes.as_ref()?;
        self.blind.is_none().then(|| self.flows.rates(id, now))
    }

    /// How long its operations took.
    #[must_use]
    pub fn latency(&self, id: CgroupId) -> Option<LatencyStatus> {
        self.probes.as_ref()?.latency(id)
    }
}
