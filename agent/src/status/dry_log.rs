//! What an observer would do, for its log: a few lines every ten seconds, whatever the number of decisions.

use std::collections::HashMap;
use std::mem::{Discriminant, discriminant};
use std::time::{Duration, Instant};

use justitia_api::{Action, Decision};

use super::decision_log::Decided;
use crate::model::Key;

/// Between the lines about some decisions and those about later ones.
const PERIOD: Duration = Duration::from_secs(10);
/// The most tenants that are named at once.
const MAX_LINES: usize = 10;

/// Decisions that have not been logged yet, those of one kind about one tenant told as one.
#[derive(Debug, Default)]
pub(crate) struct DryLog {
    /// In the order in which they came.
    waiting: Vec<Decision>,
    /// The last of each tenant and kind among them.
    latest: HashMap<(Key, Discriminant<Action>), usize>,
    told: Option<Instant>,
}

impl DryLog {
    /// Adds what would be done to the tenant at `path`.
    pub(crate) fn add(&mut self, path: &str, decided: &Decided) {
        let kind = (decided.key, discriminant(&decided.action));
        let last = self.latest.get(&kind);
        if let Some(last) = last.and_then(|at| self.waiting.get_mut(*at))
            && last.action.merge(&decided.action)
        {
            last.steps = last.steps.saturating_add(1);
            last.reason.clone_from(&decided.reason);
            return;
        }
        self.latest.insert(kind, self.waiting.len());
        self.waiting.push(Decision {
            at: 0.0,
            since: 0.0,
            path: path.to_owned(),
            action: decided.action.clone(),
            steps: 1,
            dry_run: true,
            reason: decided.reason.clone(),
        });
    }

    /// The decisions that are to be logged now, and how many are left out; nothing sooner than `PERIOD` after the last ones.
    pub(crate) fn due(&mut self, now: Instant) -> (Vec<Decision>, usize) {
        let too_soon = self.told.is_some_and(|told| now - told < PERIOD);
        if too_soon || self.waiting.is_empty() {
            return (Vec::new(), 0);
        }
        self.told = Some(now);
        self.latest.clear();
        let mut all = std::mem::take(&mut self.waiting);
        let left_out = all.len().saturating_sub(MAX_LINES);
        all.truncate(MAX_LINES);
        (all, left_out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use justitia_api::Reason;
    use justitia_kernel::cgroup::CgroupId;

    fn reclaim(log: &mut DryLog, id: u64) {
        let action = Action::Reclaim { bytes: 1 << 20 };
        let key = Key::Cgroup(CgroupId(id));
        let reason = Reason::Text("above".to_owned());
        log.add(&format!("t{id}"), &Decided::new(key, action, reason));
    }

    fn lines(log: &mut DryLog, now: Instant) -> (Vec<String>, usize) {
        let (decisions, left_out) = log.due(now);
        let text = |one: &Decision| format!("{} {}", one.path, one.what());
        (decisions.iter().map(text).collect(), left_out)
    }

    #[test]
    fn a_tenant_has_a_line_each_ten_seconds_with_all_that_would_be_done_to_it() {
        let (mut log, begun) = (DryLog::default(), Instant::now());
        let mut told = Vec::new();
        // Ten decisions a second about each of two tenants, for half a minute.
        for tick in 0..300 {
            reclaim(&mut log, 1);
            reclaim(&mut log, 2);
            told.extend(lines(&mut log, begun + tick * Duration::from_millis(100)).0);
        }
        let many = "would reclaim 100M in 100 steps";
        let expected = [
            "t1 would reclaim 1.00M".to_owned(),
            "t2 would reclaim 1.00M".to_owned(),
            format!("t1 {many}"),
            format!("t2 {many}"),
            format!("t1 {many}"),
            format!("t2 {many}"),
        ];
        assert_eq!(told, expected);
    }

    #[test]
    fn of_a_thousand_tenants_ten_are_named() {
        let (mut log, now) = (DryLog::default(), Instant::now());
        (0..1000).for_each(|id| reclaim(&mut log, id));
        let (named, left_out) = lines(&mut log, now);
        assert_eq!((named.len(), left_out), (10, 990));
        assert_eq!(lines(&mut log, now + PERIOD), (vec![], 0), "told once");
    }
}
