//! The latest decisions, bounded: a few per tenant, the same ones in a row told as one.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use justitia_api::{Action, Decision, Reason};

use crate::model::Key;

/// Entries of one tenant.
const MAX_PER_TENANT: usize = 8;
/// Entries in all.
const MAX_ENTRIES: usize = 1024;
/// The same action again within this time is merged with the entry.
const MERGE_WITHIN: Duration = Duration::from_secs(10);

#[derive(Debug)]
struct Entry {
    first: Instant,
    last: Instant,
    steps: u32,
    path: String,
    decided: Decided,
}

/// The last decisions.
#[derive(Debug)]
pub struct DecisionLog {
    start: Instant,
    observe: bool,
    entries: VecDeque<Entry>,
}

impl DecisionLog {
    /// An empty log; times count from `start`. With `observe` nothing was done, only decided.
    #[must_use]
    pub const fn new(start: Instant, observe: bool) -> Self {
        Self {
            start,
            observe,
            entries: VecDeque::new(),
        }
    }

    /// Adds what became of the tenant at `path`. Where there are too many entries of this tenant, or in all, the oldest is
    /// dropped.
    pub fn record(&mut self, path: &str, decided: Decided, now: Instant) {
        let mut of_tenant = self
            .entries
            .iter_mut()
            .enumerate()
            .rev()
            .filter(|(_, e)| e.decided.key == decided.key);
        if let Some((i, entry)) = of_tenant.next() {
            if now - entry.last < MERGE_WITHIN && entry.decided.action.merge(&decided.action) {
                (entry.last, entry.decided.reason) = (now, decided.reason);
                entry.steps = entry.steps.saturating_add(1);
                // The latest are last, so that the first is the oldest.
                let latest = self.entries.remove(i);
                self.entries.extend(latest);
                return;
            }
            if let Some((oldest, _)) = of_tenant.nth(MAX_PER_TENANT - 2) {
                self.entries.remove(oldest);
            }
        }
        if self.entries.len() == MAX_ENTRIES {
            self.entries.pop_front();
        }
        self.entries.push_back(Entry {
            first: now,
            last: now,
            steps: 1,
            path: path.to_owned(),
            decided,
        });
    }

    /// Forgets a tenant that was removed.
    pub fn forget(&mut self, key: Key) {
        self.entries.retain(|e| e.decided.key != key);
    }

    /// Every entry, oldest first.
    #[must_use]
    pub fn decisions(&self) -> Vec<Decision> {
        self.entries.iter().map(|e| self.decision(e)).collect()
    }

    fn decision(&self, entry: &Entry) -> Decision {
        let seconds = |at: Instant| at.saturating_duration_since(self.start).as_secs_f64();
        let action = entry.decided.action.clone();
        Decision {
            at: seconds(entry.last),
            since: seconds(entry.first),
            path: entry.path.clone(),
            action,
            steps: entry.steps,
            dry_run: self.observe && entry.decided.is_deed(),
            reason: entry.decided.reason.clone(),
        }
    }
}

/// An action on a tenant, done or, in observe mode, only decided, and the reason for it.
#[derive(Clone, Debug, PartialEq)]
pub struct Decided {
    /// The tenant.
    pub key: Key,
    /// What was done.
    pub action: Action,
    /// Why.
    pub reason: Reason,
}

impl Decided {
    /// A decision about the tenant `key`.
    pub fn new(key: Key, action: Action, reason: impl Into<Reason>) -> Self {
        let reason = reason.into();
        Self {
            key,
            action,
            reason,
        }
    }

    /// Whether it changes something: an observer only would.
    pub(crate) const fn is_deed(&self) -> bool {
        matches!(
            self.action,
            Action::Reclaim { .. } | Action::Set { from: Some(_), .. } | Action::TakeCharge { .. }
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use justitia_api::Reason;
    use justitia_kernel::cgroup::CgroupId;

    fn record(log: &mut DecisionLog, id: u64, action: Action, ms: u64) {
        let now = log.start + Duration::from_millis(ms);
        let key = Key::Cgroup(CgroupId(id));
        let reason = Reason::Text(format!("at {ms}"));
        log.record(&format!("t{id}"), Decided::new(key, action, reason), now);
    }

    fn reclaim(bytes: u64) -> Action {
        Action::Reclaim { bytes }
    }

    #[test]
    fn the_same_action_in_a_row_is_one_entry() {
        let mut log = DecisionLog::new(Instant::now(), true);
        for n in 0..5 {
            record(&mut log, 1, reclaim(1 << 20), n * 1000);
        }
        record(&mut log, 2, reclaim(1 << 20), 4500);
        record(&mut log, 1, Action::Exempt, 5000);
        record(&mut log, 1, reclaim(1 << 10), 30_000);
        let decisions = log.decisions();
        let what: Vec<String> = decisions.iter().map(Decision::what).collect();
        assert_eq!(
            what,
            [
                "would reclaim 5.00M in 5 steps",
                "would reclaim 1.00M",
                "exempt from reclaim",
                "would reclaim 1.00K"
            ]
        );
        assert_eq!((decisions[0].since, decisions[0].at), (0.0, 4.0));
        let latest = decisions[0].reason.to_string();
        assert_eq!(latest, "at 4000", "the latest reason");
    }

    #[test]
    fn a_limit_that_comes_and_goes_within_seconds_is_one_entry() {
        let mut log = DecisionLog::new(Instant::now(), false);
        let knob = || "io.max 8:0".to_owned();
        let (from, to) = (None, "8:0 wbps=7".to_owned());
        let set = Action::Set {
            knob: knob(),
            from,
            to,
        };
        record(&mut log, 1, set.clone(), 0);
        record(&mut log, 1, Action::Restore { knob: knob() }, 1000);
        assert_eq!(log.decisions()[0].what(), "restore io.max 8:0 in 2 steps");
        record(&mut log, 1, set, 2000);
        let decisions = log.decisions();
        assert_eq!(decisions.len(), 1);
        assert_eq!(
            decisions[0].what(),
            "set io.max 8:0 to 8:0 wbps=7 in 3 steps"
        );
    }

    #[test]
    fn entries_are_bounded_per_tenant_and_in_all() {
        let mut log = DecisionLog::new(Instant::now(), false);
        for n in 0..100 {
            record(&mut log, 1, reclaim(n), n * 20_000);
        }
        let decisions = log.decisions();
        assert_eq!(decisions.len(), MAX_PER_TENANT);
        let first = decisions[0].reason.to_string();
        assert_eq!(first, format!("at {}", 92 * 20_000), "the last ones");
        for n in 0..2000 {
            record(&mut log, n, Action::Exempt, 4_000_000 + n);
        }
        assert_eq!(log.decisions().len(), MAX_ENTRIES);
        log.forget(Key::Cgroup(CgroupId(1999)));
        assert_eq!(log.decisions().len(), MAX_ENTRIES - 1);
    }
}
