//! Answers to the host's requests.

use std::path::{Path, PathBuf};
use std::time::Duration;

use justitia_guest_protocol::memory::{
    Answer, Body, Cached, Reclaimed, Request, State, Tenants, encode,
};
use justitia_kernel::Result;

use super::machine::{Machine, since_boot};
use super::plan::{Goal, Missed, Next, Reason, Steps, Took};
use super::readings::Readings;
use super::worth::Worth;

/// A state is used again up to this age.
pub(super) const STATE_AGE: Duration = Duration::from_secs(1);
/// Cached blocks are used again up to this age: to find them takes up to 2 s.
pub(super) const CACHED_AGE: Duration = Duration::from_secs(5);
/// Tenants are used again up to this age or, with thousands of cgroups, until searches take at most a twentieth of the time.
pub(super) const TENANTS_AGE: Duration = Duration::from_secs(2);
const TENANTS_PARTS: u32 = 20;
/// The time limit of one request: the next one waits.
const LONGEST: Duration = Duration::from_secs(10);

/// Totals of memory given back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Given {
    /// Requests for memory.
    pub(super) requests: u64,
    /// Bytes that the host asked for.
    pub(super) asked: u64,
    /// Bytes that were taken from the cache.
    pub(super) taken: u64,
    /// Lines that were no requests.
    pub(super) malformed: u64,
}

/// State that is kept across requests.
pub(super) struct Answers<M> {
    pub(super) machine: M,
    worth: Worth,
    /// The result of the last request, while its refaults are watched.
    took: Option<Took>,
    pub(super) state: Option<(Duration, State)>,
    pub(super) cached: Option<(Duration, Cached)>,
    /// When the tenants expire, and these.
    pub(super) tenants: Option<(Duration, Tenants)>,
    pub(super) reporting_order: fn() -> Option<u8>,
    pub(super) given: Given,
}

impl<M: Machine> Answers<M> {
    /// `socket` is that of `justitia run`.
    pub(super) fn new(machine: M, socket: PathBuf) -> Self {
        Self {
            machine,
            worth: Worth::new(socket),
            took: None,
            state: None,
            cached: None,
            tenants: None,
            reporting_order: || super::reporting::order(Path::new("/sys")),
            given: Given::default(),
        }
    }

    /// The answer to a line; `None` if the line has no request id. `low_watermark`: see [`Goal`].
    pub(super) fn answer(
        &mut self,
        line: &[u8],
        low_watermark: impl FnOnce(&M) -> u64,
    ) -> Option<Vec<u8>> {
        let request = match Request::decode(line) {
            Ok(request) => request,
            Err(malformed) => {
                self.given.malformed += 1;
                let answer = Answer::error(malformed.id?, malformed.why.as_str());
                return Some(encode(&answer));
            }
        };
        let body = match request {
            Request::Cached { seed, .. } => self.cached(seed).map(Body::Cached),
            Request::Tenants { .. } => Ok(Body::Tenants(self.tenants())),
            Request::State { .. } => self.state().map(Body::State),
            Request::Reclaim {
                bytes, within_ms, ..
            } => {
                let within = Duration::from_millis(within_ms.into()).min(LONGEST);
                let low_watermark = low_watermark(&self.machine);
                self.reclaim(bytes, within, low_watermark)
                    .map(Body::Reclaimed)
            }
        };
        let id = request.id();
        let answer = match body {
            Ok(body) => Answer { id, body },
            Err(error) => {
                tracing::debug!(%error, "a request of the host fails");
                Answer::error(id, &error.to_string())
            }
        };
        Some(encode(&answer))
    }

    pub(super) fn state(&mut self) -> Result<State> {
        let now = since_boot();
        if let Some((at, state)) = self.state
            && now.saturating_sub(at) < STATE_AGE
        {
            return Ok(state);
        }
        let readings = self.machine.read()?;
        let worth = self.worth(&readings);
        let state = state_of(&readings, worth, (self.reporting_order)());
        self.state = Some((now, state));
        Ok(state)
    }

    fn cached(&mut self, seed: u64) -> Result<Cached> {
        if let Some((at, cached)) = &self.cached
            && since_boot().saturating_sub(*at) < CACHED_AGE
        {
            return Ok(cached.clone());
        }
        let cached = self.machine.cached(seed)?;
        self.cached = Some((since_boot(), cached.clone()));
        Ok(cached)
    }

    fn tenants(&mut self) -> Tenants {
        let begun = since_boot();
        if let Some((until, tenants)) = &self.tenants
            && begun < *until
        {
            return tenants.clone();
        }
        let tenants = self.machine.tenants();
        let now = since_boot();
        let age = TENANTS_AGE.max(now.saturating_sub(begun) * TENANTS_PARTS);
        self.tenants = Some((now + age, tenants.clone()));
        tenants
    }

    /// The cache that is worth having, bytes.
    fn worth(&mut self, now: &Readings) -> u64 {
        let worth = self.worth.update(now);
        match self.took.map(|took| took.is_missed(now)) {
            Some(Missed::Yes) => {
                self.took = None;
                self.worth.hold(now);
                now.file
            }
            Some(Missed::No) => {
                self.took = None;
                worth
            }
            Some(Missed::NotYet) | None => worth,
        }
    }

    fn reclaim(&mut self, bytes: u64, within: Duration, low_watermark: u64) -> Result<Reclaimed> {
        let begin = self.machine.read()?;
        let worth = self.worth(&begin);
        self.machine.begin(self.worth.spare());
        let goal = Goal {
            bytes,
            within,
            worth,
            low_watermark,
            refaulting: self.worth.refaulting(),
        };
        let mut steps = Steps::new(goal, begin);
        let mut now = begin;
        let reason = loop {
            match steps.next(&now) {
                Next::Step(step) => self.machine.reclaim(step)?,
                Next::Stop(reason) => break reason,
            }
            now = self.machine.read()?;
        };
        let taken = steps.taken();
        if reason == Reason::Refaults {
            self.worth.hold(&now);
        } else if taken > 0 {
            self.took = Some(steps.took());
        }
        self.state = None;
        self.given.requests += 1;
        self.given.asked = self.given.asked.saturating_add(bytes);
        self.given.taken = self.given.taken.saturating_add(taken);
        let free = now.free;
        tracing::debug!(bytes, taken, free, worth = goal.worth, ?reason, "gave back");
        if reason == Reason::Pressure {
            tracing::info!(
                taken,
                "the host asked for memory while all tasks wait for it"
            );
        }
        Ok(Reclaimed { bytes: taken, free })
    }
}

/// The state that the host gets.
fn state_of(readings: &Readings, worth: u64, reporting_order: Option<u8>) -> State {
    let clean = readings
        .file
        .saturating_sub(readings.mapped_file)
        .saturating_sub(readings.dirty);
    let reclaimable = readings
        .free
        .saturating_add(clean)
        .saturating_add(readings.slab_reclaimable);
    let micros = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
    State {
        total: readings.total,
        free: readings.free,
        available: readings.available,
        file: readings.file,
        mapped: readings.mapped,
        dirty: readings.dirty,
        slab_reclaimable: readings.slab_reclaimable,
        anonymous: readings.anonymous,
        unreclaimable: readings.total.saturating_sub(reclaimable),
        worth,
        swap_used: readings.swap_used,
        refaults: readings.refaults,
        psi_some_us: micros(readings.psi_some),
        psi_full_us: micros(readings.psi_full),
        oom_kills: readings.oom_kills,
        reporting_order,
        uptime_ms: micros(readings.at) / 1000,
    }
}
