//! Plans the next reclaim step: a pure function of the readings before the first step and after each one.

use std::time::Duration;

use justitia_kernel::PAGE_SIZE;

use super::readings::Readings;

/// Bytes of the largest step. The kernel does not pause within a step, and may exceed it.
pub(super) const STEP: u64 = 8 << 20;
/// The smallest step, bytes: the kernel reclaims in batches of 32 pages.
const LEAST: u64 = 32 * PAGE_SIZE;
/// Refaults up to this are no sign, bytes.
const FEW_REFAULTS: u64 = 1 << 20;
/// Pressure up to this is no sign.
const LITTLE_PRESSURE: Duration = Duration::from_millis(20);
/// A request ends after this many steps in a row that took next to nothing.
const FRUITLESS: u32 = 4;
/// One part in this many of the memory stays available.
const AVAILABLE: u64 = 32;

/// Why a request ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reason {
    /// The requested memory was taken.
    Done,
    /// The time is up.
    Deadline,
    /// All tasks wait for memory.
    Pressure,
    /// Taken pages are read again.
    Refaults,
    /// The remaining cache is in use.
    Floor,
    /// Too little memory would stay available if the host did not return it.
    Available,
    /// The kernel finds nothing more: the rest is protected, dirty, or in use.
    Exhausted,
}

/// The next action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Take this many bytes.
    Step(u64),
    Stop(Reason),
}

/// The goal of a request, and its limits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Goal {
    /// The most bytes.
    pub(super) bytes: u64,
    /// The time limit.
    pub(super) within: Duration,
    /// Cache that is worth having, bytes.
    pub(super) worth: u64,
    /// Free memory below which the kernel reclaims by itself.
    pub(super) low_watermark: u64,
    /// Refaults a second before the request, bytes.
    pub(super) refaulting: u64,
}

/// The steps of one request.
#[derive(Debug)]
pub(super) struct Steps {
    goal: Goal,
    begin: Readings,
    last: Readings,
    asked: u64,
    fruitless: u32,
}

impl Steps {
    pub(super) const fn new(goal: Goal, begin: Readings) -> Self {
        Self {
            goal,
            begin,
            last: begin,
            asked: 0,
            fruitless: 0,
        }
    }

    /// Bytes by which the cache has shrunk.
    pub(super) const fn taken(&self) -> u64 {
        self.begin.cache().saturating_sub(self.last.cache())
    }

    /// The next action, from the readings after the last step.
    pub(super) fn next(&mut self, now: &Readings) -> Next {
        let took = self.last.cache().saturating_sub(now.cache());
        match took < self.asked / 4 {
            true => self.fruitless += 1,
            false => self.fruitless = 0,
        }
        let step_time = now.at.saturating_sub(self.last.at);
        self.last = *now;
        let next = self.decide(now, step_time);
        self.asked = match next {
            Next::Step(bytes) => bytes,
            Next::Stop(_) => 0,
        };
        next
    }

    fn decide(&self, now: &Readings, step_time: Duration) -> Next {
        let goal = &self.goal;
        let taken = self.taken();
        let wanted = goal.bytes.saturating_sub(taken);
        // Dirty pages cannot be taken, and any of them may be worth having.
        let floor = goal.worth.saturating_add(now.dirty);
        let spare = now.file.saturating_sub(floor);
        let reserve = goal.low_watermark.max(now.total / AVAILABLE);
        let given = self.begin.available.saturating_sub(taken);
        let available = given.min(now.available).saturating_sub(reserve);
        let elapsed = now.at.saturating_sub(self.begin.at);
        let reason = if wanted < LEAST {
            Reason::Done
        } else if elapsed.saturating_add(step_time) > goal.within {
            Reason::Deadline
        } else if self.is_under_pressure(now, elapsed) {
            Reason::Pressure
        } else if self.is_refaulting(now, taken, elapsed) {
            Reason::Refaults
        } else if available < LEAST {
            Reason::Available
        } else if spare < LEAST {
            Reason::Floor
        } else if self.fruitless >= FRUITLESS {
            Reason::Exhausted
        } else {
            return Next::Step(wanted.min(spare).min(available).min(STEP));
        };
        Next::Stop(reason)
    }

    fn is_under_pressure(&self, now: &Readings, elapsed: Duration) -> bool {
        let full = now.psi_full.saturating_sub(self.begin.psi_full);
        full > LITTLE_PRESSURE.max(elapsed / 10)
    }

    fn is_refaulting(&self, now: &Readings, taken: u64, elapsed: Duration) -> bool {
        is_refaulting(&self.begin, now, taken, elapsed, self.goal.refaulting)
    }

    /// The result of a request, to watch its refaults later.
    pub(super) const fn took(&self) -> Took {
        Took {
            begin: self.begin,
            bytes: self.taken(),
            refaulting: self.goal.refaulting,
        }
    }
}

/// How long after a request refaults are watched.
const WATCH: Duration = Duration::from_secs(10);

/// The result of a request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Took {
    begin: Readings,
    bytes: u64,
    refaulting: u64,
}

/// Whether taken memory is missed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Missed {
    /// Much of it was read again.
    Yes,
    /// Little of it was read again so far.
    NotYet,
    /// Little of it was read again.
    No,
}

impl Took {
    pub(super) fn is_missed(&self, now: &Readings) -> Missed {
        let elapsed = now.at.saturating_sub(self.begin.at);
        if is_refaulting(&self.begin, now, self.bytes, elapsed, self.refaulting) {
            Missed::Yes
        } else if elapsed < WATCH {
            Missed::NotYet
        } else {
            Missed::No
        }
    }
}

/// Whether refaults exceed twice the earlier rate by more than an eighth of the taken memory.
fn is_refaulting(
    begin: &Readings,
    now: &Readings,
    taken: u64,
    elapsed: Duration,
    before: u64,
) -> bool {
    let pages = now.refaults.saturating_sub(begin.refaults);
    let millis = u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX);
    let usual = before.saturating_mul(millis) / 500;
    let more = pages.saturating_mul(PAGE_SIZE).saturating_sub(usual);
    more > FEW_REFAULTS.max(taken / 8)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn goal() -> Goal {
        Goal {
            bytes: 400 * MIB,
            within: Duration::from_secs(2),
            worth: 200 * MIB,
            low_watermark: 20 * MIB,
            refaulting: 0,
        }
    }

    fn begin() -> Readings {
        Readings {
            at: Duration::from_secs(100),
            total: 1024 * MIB,
            free: 50 * MIB,
            available: 700 * MIB,
            file: 800 * MIB,
            slab_reclaimable: 20 * MIB,
            refaults: 1000,
            psi_full: Duration::from_secs(7),
            ..Readings::default()
        }
    }

    /// After `millis` milliseconds the cache has lost `taken` MiB.
    fn after(millis: u64, taken: u64) -> Readings {
        Readings {
            at: begin().at + Duration::from_millis(millis),
            free: begin().free + taken * MIB,
            file: begin().file - taken * MIB,
            ..begin()
        }
    }

    fn first(goal: Goal, begin: Readings) -> Next {
        Steps::new(goal, begin).next(&begin)
    }

    #[test]
    fn the_first_step_is_bounded_by_what_is_wanted_spare_and_available() {
        let step = |mib| Next::Step(mib * MIB);
        type Change = fn(&mut Goal, &mut Readings);
        let table: [(&str, Change, Next); 12] = [
            ("much", |_, _| {}, step(8)),
            ("little is wanted", |g, _| g.bytes = 3 * MIB, step(3)),
            ("nothing", |g, _| g.bytes = 0, Next::Stop(Reason::Done)),
            (
                "less than a batch",
                |g, _| g.bytes = 4096,
                Next::Stop(Reason::Done),
            ),
            ("all that there is", |g, _| g.bytes = u64::MAX, step(8)),
            ("little is spare", |g, _| g.worth = 795 * MIB, step(5)),
            (
                "nothing is spare",
                |g, _| g.worth = u64::MAX,
                Next::Stop(Reason::Floor),
            ),
            ("dirty pages", |_, r| r.dirty = 596 * MIB, step(4)),
            (
                "all dirty",
                |_, r| r.dirty = u64::MAX,
                Next::Stop(Reason::Floor),
            ),
            (
                "little is available",
                |_, r| r.available = 38 * MIB,
                step(6),
            ),
            (
                "nothing is",
                |_, r| r.available = 32 * MIB,
                Next::Stop(Reason::Available),
            ),
            (
                "low watermarks are high",
                |g, _| g.low_watermark = 700 * MIB,
                Next::Stop(Reason::Available),
            ),
        ];
        for (what, change, expected) in table {
            let (mut goal, mut readings) = (goal(), begin());
            change(&mut goal, &mut readings);
            assert_eq!(first(goal, readings), expected, "{what}");
        }
    }

    /// The action after a step of 8 MiB that ends with `now`.
    fn second(goal: Goal, now: Readings) -> Next {
        let mut steps = Steps::new(goal, begin());
        assert_eq!(steps.next(&begin()), Next::Step(STEP));
        steps.next(&now)
    }

    #[test]
    fn a_step_follows_until_enough_is_taken_or_the_time_is_over() {
        let stop = Next::Stop;
        for (millis, taken, expected) in [
            (20, 8, Next::Step(STEP)),
            (20, 397, Next::Step(3 * MIB)),
            (20, 400, stop(Reason::Done)),
            (20, 600, stop(Reason::Done)),
            (2000, 8, stop(Reason::Deadline)),
            // One more would take too long.
            (1500, 8, stop(Reason::Deadline)),
        ] {
            let next = second(goal(), after(millis, taken));
            assert_eq!(next, expected, "{millis} ms, {taken} MiB");
        }
        let little = Readings {
            available: 33 * MIB,
            ..after(20, 8)
        };
        assert_eq!(second(goal(), little), Next::Step(MIB));
    }

    #[test]
    fn no_step_follows_a_sign_that_the_memory_is_needed() {
        // Milliseconds, MiB taken, milliseconds of pressure and MiB of refaults since the beginning.
        let (step, stop) = (Next::Step(STEP), Next::Stop);
        for (millis, taken, pressure, refaults, expected) in [
            (20, 8, 20, 0, step),
            (20, 8, 21, 0, stop(Reason::Pressure)),
            (900, 8, 80, 0, step),
            (900, 8, 91, 0, stop(Reason::Pressure)),
            (20, 8, 0, 1, step),
            (20, 8, 0, 2, stop(Reason::Refaults)),
            (20, 80, 0, 10, step),
            (20, 80, 0, 11, stop(Reason::Refaults)),
        ] {
            let now = Readings {
                psi_full: begin().psi_full + Duration::from_millis(pressure),
                refaults: begin().refaults + refaults * MIB / PAGE_SIZE,
                ..after(millis, taken)
            };
            let what = (millis, taken, pressure, refaults);
            assert_eq!(second(goal(), now), expected, "{what:?}");
        }
    }

    #[test]
    fn what_is_read_again_after_a_request_is_missed() {
        let mut steps = Steps::new(goal(), begin());
        steps.next(&begin());
        steps.next(&after(20, 80));
        let took = steps.took();
        for (millis, refaults, expected) in [
            (500, 10, Missed::NotYet),
            (500, 11, Missed::Yes),
            (9_999, 10, Missed::NotYet),
            (10_000, 10, Missed::No),
            (20_000, 11, Missed::Yes),
        ] {
            let now = Readings {
                refaults: begin().refaults + refaults * MIB / PAGE_SIZE,
                ..after(millis, 80)
            };
            assert_eq!(
                took.is_missed(&now),
                expected,
                "{millis} ms, {refaults} MiB"
            );
        }
    }

    #[test]
    fn refaults_that_there_were_before_are_no_reason() {
        let goal = Goal {
            refaulting: 50 * MIB,
            ..goal()
        };
        // 10 MiB in 100 ms are twice as many as there were.
        let now = |mib| Readings {
            refaults: begin().refaults + mib * MIB / PAGE_SIZE,
            ..after(100, 8)
        };
        assert_eq!(second(goal, now(11)), Next::Step(STEP));
        assert_eq!(second(goal, now(12)), Next::Stop(Reason::Refaults));
    }

    #[test]
    fn what_a_guest_could_lack_counts_as_given_even_if_the_cache_was_not_available() {
        // The kernel counts half of the cache as available; all that is taken is taken from that.
        let mut steps = Steps::new(goal(), begin());
        steps.next(&begin());
        let now = Readings {
            available: 2000 * MIB,
            ..after(20, 390)
        };
        assert_eq!(steps.next(&now), Next::Step(STEP));
        let mut steps = Steps::new(
            goal(),
            Readings {
                available: 400 * MIB,
                ..begin()
            },
        );
        steps.next(&begin());
        assert_eq!(steps.next(&now), Next::Stop(Reason::Available));
    }

    #[test]
    fn steps_that_take_nothing_end() {
        let mut steps = Steps::new(goal(), begin());
        let taken = [0, 1, 2, 3, 7, 8, 9, 9];
        let next = taken.map(|taken| steps.next(&after(20, taken)));
        let stop = Next::Stop(Reason::Exhausted);
        assert!(
            next[..7].iter().all(|next| *next == Next::Step(STEP)),
            "{next:?}"
        );
        // 3 after 2, 8 after 7, 9 after 8: less than a quarter of a step. 7 after 3 was enough.
        assert_eq!(next[7], Next::Step(STEP));
        assert_eq!(steps.next(&after(20, 9)), stop);
        assert_eq!(steps.taken(), 9 * MIB);
    }
}
