//! The latest decisions: a few per tenant, repeated ones merged. An observing agent logs its decisions from here, in a few
//! lines every ten seconds, whatever their number.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use justitia_api::{Action, Decision, Reason};

use crate::model::Key;

/// The most entries of one tenant.
const MAX_PER_TENANT: usize = 8;
/// The most entries in all.
const MAX_ENTRIES: usize = 1024;
/// The same action again within this time is merged with the entry.
const MERGE_WITHIN: Duration = Duration::from_secs(10);
/// The time between two groups of log lines.
const PERIOD: Duration = Duration::from_secs(10);
/// The most lines in a group.
const MAX_LINES: usize = 10;

#[derive(Debug)]
struct Entry {
    first: Instant,
    last: Instant,
    steps: u32,
    path: String,
    decided: Decided,
}

/// The latest decisions.
#[derive(Debug)]
pub struct DecisionLog {
    start: Instant,
    observe: bool,
    entries: VecDeque<Entry>,
}

impl DecisionLog {
    /// An empty log; times count from `start`. With `observe` actions are only decided, not done.
    #[must_use]
    pub const fn new(start: Instant, observe: bool) -> Self {
        Self {
            start,
            observe,
            entries: VecDeque::new(),
        }
    }

    /// Adds a decision about the tenant at `path`. If there are too many entries of this tenant, or in all, the oldest is
    /// dropped.
    pub fn record(&mut self, path: &str, decided: Decided, now: Instant) {
        let mut entries = self.entries.iter_mut();
        let same = entries.rposition(|e| {
            e.decided.key == decided.key
                && now - e.last < MERGE_WITHIN
                && e.decided.action.merge(&decided.action)
        });
        // The latest are last, so the first is the oldest.
        if let Some(mut entry) = same.and_then(|i| self.entries.remove(i)) {
            (entry.last, entry.decided.reason) = (now, decided.reason);
            entry.steps = entry.steps.saturating_add(1);
            return self.entries.push_back(entry);
        }
        let all = self.entries.iter().enumerate().rev();
        let mut of_tenant = all.filter(|(_, e)| e.decided.key == decided.key);
        if let Some((oldest, _)) = of_tenant.nth(MAX_PER_TENANT - 1) {
            self.entries.remove(oldest);
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

    /// Forgets a removed tenant.
    pub fn forget(&mut self, key: Key) {
        self.entries.retain(|e| e.decided.key != key);
    }

    /// Every entry, oldest first.
    #[must_use]
    pub fn decisions(&self) -> Vec<Decision> {
        self.entries.iter().map(|e| self.decision(e)).collect()
    }

    /// Takes what an observer is to log now, and how many more entries are dropped: nothing sooner than `PERIOD` after the
    /// start or the last time. Reclaim comes first: it says who would lose pages.
    pub(crate) fn take_due(&mut self, now: Instant) -> (Vec<Decision>, usize) {
        if now - self.start < PERIOD || self.entries.is_empty() {
            return (Vec::new(), 0);
        }
        let mut all = self.decisions();
        *self = Self::new(now, self.observe);
        // Stable: within both the oldest is first.
        all.sort_by_key(|one| !matches!(one.action, Action::Reclaim { .. }));
        let left_out = all.len().saturating_sub(MAX_LINES);
        all.truncate(MAX_LINES);
        (all, left_out)
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

/// An action on a tenant, done or (in observe mode) only decided, and its reason.
#[derive(Clone, Debug, PartialEq)]
pub struct Decided {
    /// The tenant.
    pub key: Key,
    /// The action.
    pub action: Action,
    /// Its reason.
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

    /// Whether it changes something: an observing agent only decides it.
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
        record_at(log, id, action, now);
    }

    fn record_at(log: &mut DecisionLog, id: u64, action: Action, now: Instant) {
        let key = Key::Cgroup(CgroupId(id));
        let reason = Reason::Text(format!("at {}", (now - log.start).as_millis()));
        log.record(&format!("t{id}"), Decided::new(key, action, reason), now);
    }

    fn reclaim(bytes: u64) -> Action {
        Action::Reclaim { bytes }
    }

    #[test]
    fn the_same_action_within_seconds_is_one_entry() {
        let mut log = DecisionLog::new(Instant::now(), true);
        for n in 0..5 {
            record(&mut log, 1, Action::ReclaimRefused, n * 1000);
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
                "reclaim refused in 5 steps",
                "would reclaim 5.00M in 5 steps",
                "would reclaim 1.00M",
                "exempt from reclaim",
                "would reclaim 1.00K"
            ]
        );
        assert_eq!((decisions[1].since, decisions[1].at), (0.0, 4.0));
        let latest = decisions[1].reason.to_string();
        assert_eq!(latest, "at 4000", "the latest reason");
    }

    #[test]
    fn a_knob_that_comes_and_goes_within_seconds_is_one_entry() {
        let mut log = DecisionLog::new(Instant::now(), false);
        let knob = || "io.weight 8:0".to_owned();
        let (from, to) = (None, "8:0 340".to_owned());
        let set = Action::Set {
            knob: knob(),
            from,
            to,
        };
        record(&mut log, 1, set.clone(), 0);
        record(&mut log, 1, Action::Restore { knob: knob() }, 1000);
        assert_eq!(
            log.decisions()[0].what(),
            "restore io.weight 8:0 in 2 steps"
        );
        record(&mut log, 1, set, 2000);
        let decisions = log.decisions();
        assert_eq!(decisions.len(), 1);
        assert_eq!(
            decisions[0].what(),
            "set io.weight 8:0 to 8:0 340 in 3 steps"
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

    /// The lines of a log.
    fn lines(log: &mut DecisionLog, at: Instant) -> (Vec<String>, usize) {
        let (decisions, left_out) = log.take_due(at);
        let text = |one: &Decision| format!("{} {}", one.path, one.what());
        (decisions.iter().map(text).collect(), left_out)
    }

    #[test]
    fn an_observed_tenant_has_a_line_each_ten_seconds_with_all_that_would_be_done_to_it() {
        let begun = Instant::now();
        let mut log = DecisionLog::new(begun, true);
        let mut told = Vec::new();
        // Ten decisions a second about each of two tenants, for half a minute.
        for tick in 0..300 {
            let now = begun + tick * Duration::from_millis(100);
            record_at(&mut log, 1, reclaim(1 << 20), now);
            record_at(&mut log, 2, reclaim(1 << 20), now);
            told.extend(lines(&mut log, now).0);
        }
        assert_eq!(
            told,
            [
                "t1 would reclaim 101M in 101 steps",
                "t2 would reclaim 101M in 101 steps",
                "t1 would reclaim 100M in 100 steps",
                "t2 would reclaim 100M in 100 steps",
            ]
        );
    }

    #[test]
    fn of_a_thousand_observed_tenants_ten_are_named() {
        let mut log = DecisionLog::new(Instant::now(), true);
        let due = log.start + PERIOD;
        (0..1000).for_each(|id| record(&mut log, id, reclaim(1 << 20), 0));
        let (named, left_out) = lines(&mut log, due);
        assert_eq!((named.len(), left_out), (10, 990));
        assert_eq!(lines(&mut log, due + PERIOD), (vec![], 0), "told once");
    }

    #[test]
    fn an_observer_tells_of_reclaim_before_protection() {
        let mut log = DecisionLog::new(Instant::now(), true);
        let due = log.start + PERIOD;
        let protect = || Action::Set {
            knob: "memory.low".to_owned(),
            from: Some("0".to_owned()),
            to: "4096".to_owned(),
        };
        (0..20).for_each(|id| record(&mut log, id, protect(), 0));
        record(&mut log, 30, reclaim(1 << 20), 1000);
        record(&mut log, 31, reclaim(1 << 20), 2000);
        let (named, left_out) = lines(&mut log, due);
        assert_eq!(
            named[..3],
            [
                "t30 would reclaim 1.00M",
                "t31 would reclaim 1.00M",
                "t0 would set memory.low from 0 to 4.00K"
            ]
        );
        assert_eq!((named.len(), left_out), (10, 12));
    }
}
