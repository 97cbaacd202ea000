//! Decides whether the SSD store is worth it for a pool: its reads there must save more time than they and its writes cost.
//!
//! The law: blocks are admitted while *saved time ≥ spent time*. A read that the SSD answers completely saves the time of a
//! read of the disk. Spent time has two parts. The first is the time of all SSD reads, including useless ones, for which the
//! disk was read anyway because another block was missing. The second is the write time of each block that has left the SSD. A
//! block that is still there is not judged yet.
//!
//! Times are the readers' waits: a longer queue makes a disk or an SSD slower. So a pool leaves an SSD that others keep busy.
//!
//! At first all blocks are admitted. When the SSD is not worth it, a few are ([`SampledRuns`]). They come in runs, so that
//! whole reads are answered and show the benefit of admitting all.

#[cfg(test)]
mod simulation;

use crate::clock;
use crate::lock_rank::{LEAF, Ranked};
use justitia_share::RecentMean;
use serde::Serialize;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The mean time of the latest reads, or of the latest blocks written. For 256 times with twice the mean as deviation, its
/// error is a sixth.
pub(crate) type Mean = RecentMean<256>;

/// The saved or spent time before a decision, in reads of the disk: a wrong admission costs no more.
const ENOUGH: u64 = 512;
/// The same while few blocks are admitted: a 64th as many come.
const ENOUGH_SAMPLED: u64 = 16;
/// Sampled blocks stay longer than they would if all were admitted, so they may be hit more often. So each failed admission of
/// all doubles [`ENOUGH_SAMPLED`], three times at most. Then failed admissions cost a sixteenth of the reads meanwhile.
const DOUBLED: u32 = 3;

/// A pool that bypasses the SSD admits all blocks again when saved time exceeds spent time by a quarter, the possible error of
/// a mean.
const MORE: (u64, u64) = (5, 4);

/// The blocks of a pool that are admitted to the SSD store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SsdAdmission {
    /// All.
    #[default]
    All,
    /// A few: writes cost more than reads save. Blocks on the SSD are read.
    Sample,
    /// A few: the disk is no slower than the SSD. A block leaves the SSD when it is read.
    Bypass,
}

/// The last decision.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Decision {
    pub(crate) admission: SsdAdmission,
    /// The number of failed admissions of all blocks since it was last worth it.
    pub(crate) failed_trials: u32,
}

/// Measurements since the last decision.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SsdUse {
    /// The time of disk reads that the SSD saved, nanoseconds.
    pub(crate) saved_ns: u64,
    /// The time of SSD reads, nanoseconds.
    pub(crate) reading_ns: u64,
    /// Blocks that were written to the SSD and have left it: taken by a hit, evicted, or removed by a write.
    pub(crate) left: u64,
}

/// The time of a read of the disk, and of a block's write to the SSD, nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DeviceTimes {
    pub(crate) disk_read_ns: u64,
    pub(crate) write_ns: u64,
}

/// The next decision; `None` while there are too few measurements.
pub(crate) fn decide(before: Decision, seen: &SsdUse, at: DeviceTimes) -> Option<Decision> {
    let spent = seen
        .reading_ns
        .saturating_add(seen.left.saturating_mul(at.write_ns));
    let all = before.admission == SsdAdmission::All;
    let (enough, (more, than)) = match all {
        true => (ENOUGH, (1, 1)),
        false => (ENOUGH_SAMPLED << before.failed_trials.min(DOUBLED), MORE),
    };
    if seen.saved_ns.max(spent) < enough.saturating_mul(at.disk_read_ns.max(1)) {
        return None;
    }
    let product = |ns: u64, by: u64| u128::from(ns) * u128::from(by);
    let failed_trials = before.failed_trials;
    Some(if product(seen.saved_ns, than) >= product(spent, more) {
        Decision {
            admission: SsdAdmission::All,
            failed_trials: if all { 0 } else { failed_trials },
        }
    } else {
        let reads_are_worth_it = seen.saved_ns >= seen.reading_ns;
        Decision {
            admission: if reads_are_worth_it {
                SsdAdmission::Sample
            } else {
                SsdAdmission::Bypass
            },
            failed_trials: failed_trials.saturating_add(all.into()),
        }
    })
}

// The sample that is admitted while the SSD is not worth it: runs of blocks, with long pauses.

/// Blocks of a run: 1 MiB, eight reads of the kernel's readahead. Blocks that are read together arrive together.
const RUN: u32 = 256;
/// The length of a pause, in times of the run before it: one block in 64 is admitted.
const PAUSE: u32 = 63;
/// The longest pause, for a pool that is hardly used.
const LONGEST: Duration = Duration::from_secs(60);

/// The state of runs and pauses.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SampledRuns {
    /// When the run began, and its blocks so far.
    run: Option<(Instant, u32)>,
    until: Option<Instant>,
}

impl SampledRuns {
    /// Is a block admitted now?
    pub(crate) fn admits(&mut self, now: Instant) -> bool {
        if self.until.is_some_and(|until| now < until) {
            return false;
        }
        let (begun, blocks) = self.run.unwrap_or((now, 0));
        self.until = None;
        self.run = Some((begun, blocks + 1));
        if blocks + 1 >= RUN {
            let pause = now.saturating_duration_since(begun) * PAUSE;
            self.until = Some(now + pause.min(LONGEST));
            self.run = None;
        }
        true
    }
}

// Measures a pool's reads and writes on the SSD store, and decides its admission.
//
// The law: `decide`.

/// The state of one pool. Its decision affects this pool only.
#[derive(Default)]
pub(crate) struct PoolSsdAdmission {
    /// Not all blocks are admitted.
    is_sampled: AtomicBool,
    /// Blocks that have left the SSD since the last decision.
    left: AtomicU64,
    /// The time of a read of the disk that its last blocks came from, nanoseconds; 0 while unknown.
    disk_read_ns: AtomicU64,
    state: Ranked<State, LEAF>,
}

#[derive(Default)]
struct State {
    decision: Decision,
    seen: SsdUse,
    sample: SampledRuns,
}

impl PoolSsdAdmission {
    /// Is a block admitted to the SSD store now?
    pub(crate) fn admits(&self) -> bool {
        self.admits_all() || self.state.lock().sample.admits(clock::now())
    }

    /// Are all blocks admitted?
    pub(crate) fn admits_all(&self) -> bool {
        !self.is_sampled.load(Ordering::Relaxed)
    }

    /// The current admission.
    pub(crate) fn get(&self) -> SsdAdmission {
        match self.admits_all() {
            true => SsdAdmission::All,
            false => self.state.lock().decision.admission,
        }
    }

    /// Does a block leave the SSD when it is read?
    pub(crate) fn bypasses(&self) -> bool {
        self.get() == SsdAdmission::Bypass
    }

    /// Sets the time of a read of the blocks' disk.
    pub(crate) fn set_disk_read(&self, ns: Option<u64>) {
        if let Some(ns) = ns {
            self.disk_read_ns.store(ns.max(1), Ordering::Relaxed);
        }
    }

    /// Counts blocks that have left the SSD.
    pub(crate) fn left(&self, blocks: u64) {
        self.left.fetch_add(blocks, Ordering::Relaxed);
    }

    /// Counts a read of the SSD and the time it `took`. `served`: the disk was not needed.
    pub(crate) fn was_read(&self, took: Duration, served: bool, write_ns: u64) {
        let disk_read_ns = self.disk_read_ns.load(Ordering::Relaxed);
        if disk_read_ns == 0 {
            return;
        }
        let mut state = self.state.lock();
        let seen = &mut state.seen;
        let took = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        seen.reading_ns = seen.reading_ns.saturating_add(took);
        let saved = if served { disk_read_ns } else { 0 };
        seen.saved_ns = seen.saved_ns.saturating_add(saved);
        self.judge(&mut state, write_ns);
    }

    /// Decides again, given enough measurements. `write_ns` is the time of a written block.
    pub(crate) fn update(&self, write_ns: u64) {
        self.judge(&mut self.state.lock(), write_ns);
    }

    fn judge(&self, state: &mut State, write_ns: u64) {
        let disk_read_ns = self.disk_read_ns.load(Ordering::Relaxed);
        if disk_read_ns == 0 {
            return;
        }
        let left = self.left.load(Ordering::Relaxed);
        let seen = SsdUse { left, ..state.seen };
        let at = DeviceTimes {
            disk_read_ns,
            write_ns,
        };
        if let Some(decision) = decide(state.decision, &seen, at) {
            self.left.fetch_sub(left, Ordering::Relaxed);
            self.change(state, decision);
        }
    }

    fn change(&self, state: &mut State, decision: Decision) {
        let all = |decision: Decision| decision.admission == SsdAdmission::All;
        if all(decision) != all(state.decision) {
            state.sample = SampledRuns::default();
        }
        state.seen = SsdUse::default();
        state.decision = decision;
        self.is_sampled.store(!all(decision), Ordering::Relaxed);
    }

    /// Forgets all but the disk's time: the store has changed, or the pool begins to use it.
    pub(crate) fn reset(&self) {
        self.set(SsdAdmission::All);
    }

    /// Sets the decision, regardless of measurements.
    pub(crate) fn set(&self, admission: SsdAdmission) {
        self.left.store(0, Ordering::Relaxed);
        let decision = Decision {
            admission,
            failed_trials: 0,
        };
        self.change(&mut self.state.lock(), decision);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use SsdAdmission::{All, Bypass, Sample};

    #[test]
    fn what_saves_less_than_it_costs_is_not_admitted() {
        // A read of the disk takes 1 ms, a write of a block 10 us. Times in ms.
        for (before, saved, reading, left, expected) in [
            // Too little is known, whatever it says.
            (All, 0, 511, 0, None),
            (All, 511, 0, 0, None),
            (Bypass, 15, 0, 0, None),
            // Reads cost as much as they save, or a little more.
            (All, 600, 600, 0, Some(All)),
            (All, 600, 601, 0, Some(Bypass)),
            // Reads save something, but less than the writes cost.
            (All, 600, 100, 50_000, Some(All)),
            (All, 600, 100, 50_100, Some(Sample)),
            // Nothing is ever read again.
            (All, 0, 0, 51_199, None),
            (All, 0, 0, 51_200, Some(Sample)),
            // Once it was not worth it, it must be so by a quarter.
            (Bypass, 124, 100, 0, Some(Sample)),
            (Sample, 125, 100, 0, Some(All)),
            (Bypass, 125, 100, 0, Some(All)),
            (Sample, 99, 100, 0, Some(Bypass)),
            (Bypass, 124, 50, 5_000, Some(Sample)),
            (Sample, 0, 0, 1_600, Some(Sample)),
        ] {
            let seen = SsdUse {
                saved_ns: saved * 1_000_000,
                reading_ns: reading * 1_000_000,
                left,
            };
            let at = DeviceTimes {
                disk_read_ns: 1_000_000,
                write_ns: 10_000,
            };
            let decision = Decision {
                admission: before,
                failed_trials: 0,
            };
            let found = decide(decision, &seen, at).map(|found| found.admission);
            assert_eq!(found, expected, "{before:?} {seen:?}");
        }
    }

    #[test]
    fn who_came_back_in_vain_must_show_more() {
        let at = DeviceTimes {
            disk_read_ns: 1,
            write_ns: 1,
        };
        let seen = |saved_ns, left| SsdUse {
            saved_ns,
            left,
            ..SsdUse::default()
        };
        let mut now = Decision::default();
        for (saved, left, admission, failed_trials) in [
            (0, 512, Sample, 1),
            (31, 0, Sample, 1),
            (32, 0, All, 1),
            (0, 512, Sample, 2),
            (63, 0, Sample, 2),
            (64, 0, All, 2),
            (0, 512, Sample, 3),
            (128, 0, All, 3),
            (0, 512, Sample, 4),
            (127, 0, Sample, 4),
            (128, 0, All, 4),
            // It was worth it.
            (512, 512, All, 0),
            (0, 512, Sample, 1),
            (0, 512, Sample, 1),
        ] {
            now = decide(now, &seen(saved, left), at).unwrap_or(now);
            assert_eq!(
                now,
                Decision {
                    admission,
                    failed_trials
                },
                "{saved} {left}"
            );
        }
    }

    #[test]
    fn no_figure_is_too_large_or_too_small() {
        for saved_ns in [0, 1, u64::MAX] {
            for reading_ns in [0, 1, u64::MAX] {
                for left in [0, 1, u64::MAX] {
                    for disk_read_ns in [0, 1, u64::MAX] {
                        let seen = SsdUse {
                            saved_ns,
                            reading_ns,
                            left,
                        };
                        let at = DeviceTimes {
                            disk_read_ns,
                            write_ns: u64::MAX,
                        };
                        let found = decide(Decision::default(), &seen, at);
                        let cheap = reading_ns == 0 && left == 0;
                        assert!(
                            !cheap || found.is_none_or(|found| found.admission == All),
                            "{seen:?}"
                        );
                    }
                }
            }
        }
        // Where no time passes, nothing is decided.
        let none = DeviceTimes {
            disk_read_ns: 0,
            write_ns: 0,
        };
        assert_eq!(decide(Decision::default(), &SsdUse::default(), none), None);
    }

    #[test]
    fn one_block_in_64_is_admitted_in_runs() {
        let start = Instant::now();
        let mut sample = SampledRuns::default();
        let admitted: Vec<bool> = (0..256 * 64 * 10)
            .map(|us| sample.admits(start + Duration::from_micros(us)))
            .collect();
        let count = admitted.iter().filter(|admitted| **admitted).count();
        assert!((2560..=2816).contains(&count), "{count}");
        let runs = admitted.windows(2).filter(|pair| !pair[0] && pair[1]);
        assert!((9..=10).contains(&runs.count()));
    }

    #[test]
    fn a_pool_that_is_hardly_used_is_sampled_all_the_same() {
        let start = Instant::now();
        let mut sample = SampledRuns::default();
        let at = |seconds| start + Duration::from_secs(seconds);
        // A run that takes an hour.
        let run = (0..256).map(|n| n * 14);
        assert!(run.clone().all(|n| sample.admits(at(n))));
        let end = 255 * 14;
        assert!(!sample.admits(at(end + 59)));
        assert!(sample.admits(at(end + 60)));
    }

    #[test]
    fn a_pool_follows_what_its_reads_take() {
        let pool = PoolSsdAdmission::default();
        let read = |us: u64, served| {
            for _ in 0..2000 {
                pool.was_read(Duration::from_micros(us), served, 1000);
            }
            pool.get()
        };
        assert_eq!(
            read(1_000_000, false),
            SsdAdmission::All,
            "no disk is known"
        );
        pool.set_disk_read(None);
        pool.set_disk_read(Some(100_000));
        for (us, served, left, expected) in [
            (70, true, 0, SsdAdmission::All),
            (110, true, 0, SsdAdmission::Bypass),
            // Within a quarter.
            (90, true, 0, SsdAdmission::Sample),
            (70, true, 0, SsdAdmission::All),
            (70, false, 0, SsdAdmission::Bypass),
            (50, true, 0, SsdAdmission::All),
            // 2 us were saved of each read, and each block that has left has cost 1.
            (98, true, 50_000, SsdAdmission::Sample),
        ] {
            pool.left(left);
            assert_eq!(read(us, served), expected, "{us} us, {left} left");
            assert_eq!(pool.admits_all(), expected == SsdAdmission::All);
        }
        pool.left(1_000_000);
        pool.update(1000);
        assert_eq!(pool.get(), SsdAdmission::Sample, "what is never read again");
        // The disk becomes slow.
        pool.set_disk_read(Some(1_000_000));
        assert_eq!(read(98, true), SsdAdmission::All);
        pool.set(SsdAdmission::Bypass);
        assert!(pool.bypasses());
        pool.reset();
        assert!(pool.admits_all() && pool.admits());
    }
}
