//! Estimates how much of the cache is worth having.
//!
//! If `justitia run` runs in this machine, it knows that by its tenants' curves. Otherwise it is estimated from the kernel's
//! counters. They count no hits, but a page's second use (activation) and a read after reclaim (refault). So active pages count
//! at first, and later activated and refaulted ones. The estimate decays while neither happens. An estimate that is too low shows
//! in the first step that takes such pages: their refaults count again.

use std::path::{Path, PathBuf};
use std::time::Duration;

use justitia_api::Status;
use justitia_api::client::ask_within;
use justitia_kernel::PAGE_SIZE;
use justitia_share::{HalfLife, num};

use super::readings::Readings;

/// The half-life of used pages while the machine is idle.
const IDLE: HalfLife = HalfLife::new(Duration::from_secs(30));
/// The same while it is busy: it may use pages without effect on the kernel's counters.
const BUSY: HalfLife = HalfLife::new(Duration::from_secs(240));
/// A machine counts as busy from this part of one processor on: a tenth.
const BUSY_SHARE: u32 = 10;

/// The interval between requests to the agent.
const ASK_EVERY: Duration = Duration::from_secs(5);
/// The time limit for its answer: the host waits.
const ANSWER: Duration = Duration::from_millis(500);

/// The estimate of used cache.
#[derive(Debug)]
pub(super) struct Worth {
    socket: PathBuf,
    /// Unmapped pages of files that were used lately, bytes.
    lately: u64,
    last: Option<Readings>,
    /// Refaults a second at the last readings, bytes.
    refaulting: u64,
    /// When the agent was asked, and its answer.
    agent: Option<(Duration, Option<Use>)>,
}

/// The memory that the agent's tenants use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Use {
    /// Their working sets together, bytes.
    working_sets: u64,
    spare: Vec<Spare>,
}

/// The memory that a tenant does not use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Spare {
    /// Its cgroup's path below the root, as the agent shows it.
    pub(super) path: String,
    /// Its cgroup's id.
    pub(super) id: u64,
    /// Bytes of its cache beyond its working set.
    pub(super) bytes: u64,
}

impl Worth {
    /// `socket` is that of `justitia run`.
    pub(super) const fn new(socket: PathBuf) -> Self {
        Self {
            socket,
            lately: 0,
            last: None,
            refaulting: 0,
            agent: None,
        }
    }

    /// Refaults a second before the last readings, bytes.
    pub(super) const fn refaulting(&self) -> u64 {
        self.refaulting
    }

    /// Taken pages are read again: all remaining pages count as used.
    pub(super) fn hold(&mut self, now: &Readings) {
        self.lately = now.file.saturating_sub(now.mapped_file);
    }

    /// The cache that is worth having, bytes: at least the mapped pages.
    pub(super) fn update(&mut self, now: &Readings) -> u64 {
        let is_fresh = |at: Duration| now.at.saturating_sub(at) < ASK_EVERY;
        if !self.agent.as_ref().is_some_and(|(at, _)| is_fresh(*at)) {
            self.agent = Some((now.at, ask(&self.socket)));
        }
        let working_sets = self.agent().map(|of| of.working_sets);
        self.follow(now, working_sets)
    }

    /// The memory that the agent's tenants do not use; `None` if no agent answers.
    pub(super) fn spare(&self) -> Option<&[Spare]> {
        self.agent().map(|of| &*of.spare)
    }

    fn agent(&self) -> Option<&Use> {
        self.agent.as_ref()?.1.as_ref()
    }

    fn follow(&mut self, now: &Readings, working_set: Option<u64>) -> u64 {
        let unmapped = now.file.saturating_sub(now.mapped_file);
        let Some(last) = self.last.replace(*now) else {
            self.lately = unmapped.min(working_set.unwrap_or(now.active_file));
            return self.sum(now);
        };
        let passed = now.at.saturating_sub(last.at);
        let busy = now.busy.saturating_sub(last.busy);
        let half_life = match busy.saturating_mul(BUSY_SHARE) < passed {
            true => IDLE,
            false => BUSY,
        };
        let pages = |now: u64, last: u64| now.saturating_sub(last).saturating_mul(PAGE_SIZE);
        let refaulted = pages(now.refaults, last.refaults);
        let used = refaulted.saturating_add(pages(now.activations, last.activations));
        let left = num::to_u64(num::to_f64(self.lately) * half_life.decay(passed));
        self.lately = match working_set {
            // A tenant that rests for a moment uses nothing.
            Some(bytes) => left.max(bytes.saturating_sub(now.mapped_file)),
            None => left.saturating_add(used),
        };
        self.lately = self.lately.min(unmapped);
        let millis = u64::try_from(passed.as_millis()).unwrap_or(u64::MAX).max(1);
        self.refaulting = refaulted.saturating_mul(1000) / millis;
        self.sum(now)
    }

    fn sum(&self, now: &Readings) -> u64 {
        now.mapped_file.saturating_add(self.lately).min(now.file)
    }
}

/// The memory that the agent's tenants use; `None` if no agent answers.
fn ask(socket: &Path) -> Option<Use> {
    socket.exists().then_some(())?;
    Some(of_status(&ask_within(socket, ANSWER).ok()?))
}

/// A tenant without a known use uses all its memory.
fn of_status(status: &Status) -> Use {
    let leaves = status.tenants.iter().filter(|tenant| tenant.leaf);
    leaves.fold(Use::default(), |mut all, tenant| {
        let used = match tenant.known_working_set() {
            Some(_) => tenant.in_use(),
            None if tenant.rests() => tenant.working_set,
            None => tenant.usage,
        };
        let used = used.min(tenant.usage);
        all.working_sets = all.working_sets.saturating_add(used);
        if !tenant.is_unmanaged() {
            all.spare.push(Spare {
                path: tenant.path.clone(),
                id: tenant.id,
                bytes: tenant.usage - used,
            });
        }
        all
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use justitia_api::TenantStatus;

    const MIB: u64 = 1 << 20;

    fn at(seconds: u64, busy_ms: u64) -> Readings {
        Readings {
            at: Duration::from_secs(seconds),
            busy: Duration::from_millis(busy_ms),
            file: 1000 * MIB,
            active_file: 400 * MIB,
            mapped_file: 100 * MIB,
            ..Readings::default()
        }
    }

    fn new() -> Worth {
        Worth::new(PathBuf::new())
    }

    #[test]
    fn what_is_active_counts_and_ever_less_while_nothing_is_done() {
        for (busy_ms, seconds, expected) in [
            (0, 30, 300),
            (0, 60, 200),
            (0, 3000, 100),
            // Half of a processor.
            (30_000, 60, 436),
            (120_000, 240, 300),
        ] {
            let mut worth = new();
            assert_eq!(worth.follow(&at(0, 0), None), 500 * MIB);
            let later = worth.follow(&at(seconds, busy_ms), None);
            assert_eq!(later / MIB, expected, "{seconds} s, {busy_ms} ms");
        }
    }

    #[test]
    fn what_is_used_again_counts_again() {
        let mut worth = new();
        worth.follow(&at(0, 0), None);
        let refaulted = Readings {
            refaults: 50 * MIB / PAGE_SIZE,
            activations: 30 * MIB / PAGE_SIZE,
            ..at(3000, 0)
        };
        assert_eq!(worth.follow(&refaulted, None) / MIB, 180);
        assert_eq!(worth.refaulting(), 50 * MIB / 3000);
        // Never more than there is.
        let all = Readings {
            refaults: u64::MAX,
            activations: u64::MAX,
            ..at(3001, 0)
        };
        assert_eq!(worth.follow(&all, None), 1000 * MIB);
        // And half of that after another half-life.
        let later = Readings {
            at: Duration::from_secs(3031),
            ..all
        };
        assert_eq!(worth.follow(&later, None), 550 * MIB);
        let fewer = Readings {
            file: 50 * MIB,
            ..later
        };
        assert_eq!(worth.follow(&fewer, None), 50 * MIB);
    }

    #[test]
    fn what_the_agent_says_counts_instead() {
        let mut worth = new();
        assert_eq!(worth.follow(&at(0, 0), Some(700 * MIB)), 800 * MIB);
        // It rests, and begins anew with another set.
        assert_eq!(worth.follow(&at(30, 0), Some(0)), 450 * MIB);
        assert_eq!(worth.follow(&at(3000, 0), Some(300 * MIB)), 300 * MIB);
        let refaulted = Readings {
            refaults: u64::MAX,
            ..at(3001, 0)
        };
        assert!(worth.follow(&refaulted, Some(300 * MIB)) / MIB <= 300);
    }

    #[test]
    fn an_agents_tenants_are_worth_what_they_use() {
        let tenant = |leaf, usage, working_set, working_set_unknown, idle| TenantStatus {
            leaf,
            usage,
            working_set,
            working_set_unknown,
            idle,
            ..TenantStatus::default()
        };
        let status = Status {
            tenants: vec![
                tenant(false, 1000, 1000, false, 0.0),
                tenant(true, 100, 60, false, 0.0),
                tenant(true, 100, 60, false, 60.0),
                tenant(true, 100, 200, false, 0.0),
                tenant(true, 100, 7, true, 0.0),
                tenant(true, 100, 7, true, 60.0),
            ],
            ..Status::default()
        };
        let of = of_status(&status);
        assert_eq!(of.working_sets, 60 + 100 + 100 + 7);
        let spare: Vec<u64> = of.spare.iter().map(|spare| spare.bytes).collect();
        assert_eq!(spare, [40, 100, 0, 0, 93]);
        assert_eq!(ask(Path::new("/none")), None);
    }
}
