//! Turns the result of a job into decisions, and decides when its file may be tried again.

use std::time::{Duration, Instant};

use justitia_api::{Action, RechargeGain, RechargeReason, RechargeResult, Rule};

use super::job::JobResult;
use crate::enforce::decided::Decided;
use crate::plan::{Key, RechargeIntent};

/// The pause of a file after a success, or if nothing was done.
pub(super) const RETRY_AFTER: Duration = Duration::from_secs(600);
/// The pause of a file that was read again without the intended effect.
const RETRY_AFTER_FAILURE: Duration = Duration::from_secs(3600);

/// A file that was tried.
#[derive(Debug)]
pub(super) struct Attempt {
    /// The file is not tried again before.
    pub(super) until: Instant,
    /// Where in the file the next job begins, bytes.
    pub(super) next: u64,
}

impl Attempt {
    pub(super) const fn new(until: Instant, next: u64) -> Self {
        Self { until, next }
    }

    /// Whether it still has to be remembered.
    pub(super) fn is_needed(&self, now: Instant) -> bool {
        self.until > now || self.next > 0
    }
}

/// The decisions of a result, and when its file may be tried again.
pub(super) fn evaluate(
    intent: &RechargeIntent,
    result: Result<JobResult, String>,
    now: Instant,
) -> (Vec<Decided>, Attempt) {
    let (owner, charged) = (Key::Cgroup(intent.owner), Key::Cgroup(intent.charged));
    let done = match result {
        Ok(done) => done,
        Err(why) => {
            tracing::info!(file = %intent.file, why, "a shared file was not recharged");
            let failed = Some(RechargeResult::Failed { error: why });
            let reason = reason(&intent.file.to_string(), Some(intent.reason), failed);
            let decided = Decided::new(owner, Action::RechargeFailed, reason);
            return (vec![decided], Attempt::new(now + RETRY_AFTER, 0));
        }
    };
    let name = if done.name.is_empty() {
        intent.file.to_string()
    } else {
        done.name.clone()
    };
    let result = RechargeResult::Done {
        read: done.read,
        skipped: done.skipped,
        owner_gained: done.owner_gained,
        charged_lost: done.charged_lost,
        stopped: done.stopped.clone(),
    };
    tracing::info!(file = name, owner = intent.owner.0, %result, "recharged");
    let why = |gain| reason(&name, gain, Some(result.clone()));
    if !done.is_success() {
        let decided = Decided::new(owner, Action::RechargeFailed, why(Some(intent.reason)));
        let pause = if done.read > 0 {
            RETRY_AFTER_FAILURE
        } else {
            RETRY_AFTER
        };
        return (vec![decided], Attempt::new(now + pause, 0));
    }
    let bytes = done.read;
    let decided = vec![
        Decided::new(
            owner,
            Action::TakeCharge { bytes },
            why(Some(intent.reason)),
        ),
        Decided::new(charged, Action::LoseCharge { bytes }, why(None)),
    ];
    // The rest of a large file follows after the next watch.
    let pause = if done.next > 0 {
        Duration::ZERO
    } else {
        RETRY_AFTER
    };
    (decided, Attempt::new(now + pause, done.next))
}

/// The reason of a recharge of `file`.
pub(super) fn reason(
    file: &str,
    gain: Option<RechargeGain>,
    result: Option<RechargeResult>,
) -> Rule {
    Rule::Recharge(RechargeReason {
        file: file.to_owned(),
        gain,
        result,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use justitia_kernel::cgroup::CgroupId;
    use justitia_kernel::file::FileId;

    fn intent() -> RechargeIntent {
        RechargeIntent {
            file: FileId {
                device: 8 << 20,
                inode: 7,
                generation: 1,
            },
            owner: CgroupId(2),
            charged: CgroupId(3),
            cached: 8 << 20,
            reason: RechargeGain {
                owner_share: 0.8,
                charged_share: 0.1,
                used: 8 << 20,
                exposed: 0.5,
                exposed_after: 0.0,
                gain: 64 << 20,
                cost: 8 << 20,
                horizon: 300,
            },
        }
    }

    fn done(read: u64, owner_gained: u64, next: u64) -> JobResult {
        JobResult {
            name: "/layers/lib.so".to_owned(),
            dropped: read,
            read,
            owner_gained,
            next,
            ..JobResult::default()
        }
    }

    #[test]
    fn the_result_decides_the_events_and_when_the_file_is_tried_again() {
        let now = Instant::now();
        let told = |owner_gained| {
            let (decided, attempt) = evaluate(&intent(), owner_gained, now);
            let actions: Vec<Action> = decided.into_iter().map(|e| e.action).collect();
            (actions, attempt.until - now, attempt.next)
        };
        let moved = 8 << 20;
        let handed_over = || {
            vec![
                Action::TakeCharge { bytes: moved },
                Action::LoseCharge { bytes: moved },
            ]
        };
        assert_eq!(
            told(Ok(done(moved, moved, 0))),
            (handed_over(), RETRY_AFTER, 0)
        );
        assert_eq!(
            told(Ok(done(moved, moved, 4096))),
            (handed_over(), Duration::ZERO, 4096)
        );
        let failed = vec![Action::RechargeFailed];
        assert_eq!(
            told(Ok(done(moved, 0, 0))),
            (failed.clone(), RETRY_AFTER_FAILURE, 0)
        );
        assert_eq!(told(Ok(done(0, 0, 0))), (failed.clone(), RETRY_AFTER, 0));
        assert_eq!(told(Err("dirty".to_owned())), (failed, RETRY_AFTER, 0));
    }
}
