//! A tenant's miss-ratio curve from its sampled accesses, and the working set that follows from it.

use std::time::{Duration, Instant};

use justitia_api::{CurveStatus, Evidence};
use justitia_share::curve::{
    BLOCK, BREAK_EVEN, DecayedHistogram, HALF_LIFE, MissRatioCurve, ReuseTimes, SamplerUse,
    first_shift, next_shift,
};
use justitia_share::num::{to_f64, to_u64};

use crate::model::WorkingSet;

/// What the probes have counted of one tenant by now.
#[derive(Clone, Debug)]
pub struct ReuseCounts {
    /// Reuse times.
    pub reuse: ReuseTimes,
    /// Accesses that evicted another block from the sample.
    pub evicted: u64,
    /// Blocks in the sample that were accessed within [`RECENT_ACCESSES`].
    pub live: u64,
    /// The fraction of their pages that these blocks need in memory, above 0 and up to 1.
    pub touched: f64,
    /// For each set of the sampler that is full: how far back an earlier access would be known, in accesses.
    pub lookbacks: Vec<u64>,
}

impl Default for ReuseCounts {
    /// Of nothing that is live: blocks count whole.
    fn default() -> Self {
        Self {
            reuse: ReuseTimes::default(),
            evicted: 0,
            live: 0,
            touched: 1.0,
            lookbacks: Vec::new(),
        }
    }
}

/// A sampled block is live if it is among this many of the tenant's latest accesses.
pub const RECENT_ACCESSES: u64 = 1 << 20;

/// What is added to the size that the curve shows, as a fraction of it. Reuse times are known to an eighth, and a thousand
/// sampled blocks tell the size of a set to 3 %. For a loop, a cache that is slightly too small is of no use at all.
const MARGIN: f64 = 0.125;

/// The status leaves out points of the curve that change the miss ratio by less.
const STEP: f64 = 0.01;
/// The status has no curve below this many accesses a second.
const MIN_RATE: f64 = 0.01;

/// A tenant's accesses.
#[derive(Debug)]
pub struct Reuse {
    since: Instant,
    at: Instant,
    before: ReuseCounts,
    recent: DecayedHistogram,
    curve: MissRatioCurve,
    shift: u32,
    /// Blocks.
    working_set: f64,
    /// When it last used its working set.
    used_at: Option<Instant>,
}

impl Reuse {
    /// Sampled from `now` on; `accesses` were counted before. The tenant's cache holds `held` bytes.
    #[must_use]
    pub fn new(now: Instant, accesses: u64, held: u64) -> Self {
        let mut before = ReuseCounts::default();
        before.reuse.accesses = accesses;
        Self {
            since: now,
            at: now,
            before,
            recent: DecayedHistogram::default(),
            curve: MissRatioCurve::default(),
            shift: first_shift(held / BLOCK),
            working_set: 0.0,
            used_at: None,
        }
    }

    /// Takes over what was counted by now. `capacity` is the largest cache that a tenant can have, bytes.
    pub fn record(&mut self, mut counts: ReuseCounts, capacity: u64, now: Instant) {
        let new = counts.reuse.since(&self.before.reuse);
        let capacity = to_u64(to_f64(capacity) / block(&counts));
        let shift = next_shift(SamplerUse {
            shift: self.shift,
            accesses: new.accesses,
            evicted: counts.evicted.wrapping_sub(self.before.evicted),
            live: counts.live,
            max_blocks: capacity,
        });
        let elapsed = now.saturating_duration_since(self.at);
        // Only counts are compared with the next ones.
        let lookbacks = std::mem::take(&mut counts.lookbacks);
        self.recent.add(&new, lookbacks, elapsed);
        if shift < self.shift {
            self.recent.restart_observation();
        }
        self.shift = shift;
        (self.before, self.at) = (counts, now);
        self.curve = MissRatioCurve::of(&self.recent);
        self.working_set = self.curve.working_set(to_f64(capacity)) * (1.0 + MARGIN);
        // As many accesses as there are blocks in its working set within the time that a block is kept for one read.
        let accesses = to_f64(new.accesses) * BREAK_EVEN.as_secs_f64();
        if new.accesses > 0 && accesses >= self.working_set * elapsed.as_secs_f64() {
            self.used_at = Some(now);
        }
    }

    /// For how long it had not used its working set when its counts were last read; `None` if it never did. Less than one
    /// access to each block in [`BREAK_EVEN`], such as a health check's, is no use of the set.
    #[must_use]
    pub fn idle_for(&self) -> Option<Duration> {
        self.used_at
            .map(|used| self.at.saturating_duration_since(used))
    }

    /// The sampling rate to use: one block in 2 to the power of this.
    #[must_use]
    pub const fn shift(&self) -> u32 {
        self.shift
    }

    /// The curve for the status; `None` while nothing is accessed.
    #[must_use]
    pub fn status(&self) -> Option<CurveStatus> {
        // A steady rate of 1 a second adds up to this, as counts decay.
        let seconds = HALF_LIFE.mean_life().as_secs_f64();
        let accesses = self.curve.accesses() / seconds;
        let bytes = |blocks: f64| to_u64(blocks * block(&self.before));
        (accesses >= MIN_RATE).then(|| CurveStatus {
            accesses,
            points: self
                .curve
                .steps(STEP)
                .into_iter()
                .map(|(blocks, misses)| (bytes(blocks), (misses * 1e4).round() / 1e4))
                .collect(),
        })
    }

    /// The working set for the planners.
    #[must_use]
    pub fn working_set(&self) -> WorkingSet {
        WorkingSet {
            bytes: to_u64(self.working_set * block(&self.before)),
            observed_for: self.at.saturating_duration_since(self.since),
            evidence: Evidence::Accesses,
        }
    }
}

/// What a block needs in memory, bytes.
fn block(counts: &ReuseCounts) -> f64 {
    to_f64(BLOCK) * counts.touched
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes of the largest cache.
    const CAPACITY: u64 = 1 << 30;

    /// A tenant that has read 6,000 blocks again and again, 600 a second, for three minutes; and the time then.
    fn reader() -> (Reuse, ReuseCounts, Instant) {
        let mut now = Instant::now();
        let mut reuse = Reuse::new(now, 0, 0);
        let mut counts = ReuseCounts::default();
        for second in 0..180 {
            now += Duration::from_secs(1);
            read(&mut counts, 600, second < 10);
            reuse.record(counts.clone(), CAPACITY, now);
        }
        (reuse, counts, now)
    }

    /// Reads as many blocks of the 6,000 in order: for the first time, or again.
    fn read(counts: &mut ReuseCounts, blocks: u64, first: bool) {
        counts.reuse.accesses += blocks;
        for _ in 0..blocks {
            counts.reuse.count((!first).then_some(6_000), 1);
        }
    }

    #[test]
    fn of_sparse_blocks_the_pages_in_use_are_the_working_set() {
        let (mut reuse, mut counts, mut now) = reader();
        let whole = reuse.working_set().bytes;
        let size = |reuse: &Reuse| reuse.status().unwrap().points.last().unwrap().0;
        let curve = size(&reuse);
        counts.touched = 1.0 / 16.0;
        for _ in 0..5 {
            now += Duration::from_secs(1);
            read(&mut counts, 600, false);
            reuse.record(counts.clone(), CAPACITY, now);
        }
        for (found, whole) in [(reuse.working_set().bytes, whole), (size(&reuse), curve)] {
            assert!(
                (whole / 20..whole / 14).contains(&found),
                "{found}, {whole}"
            );
        }
        // More blocks than fit whole into the largest cache.
        let mut sparse = Reuse::new(now, 0, 0);
        let mut counts = ReuseCounts {
            touched: 1.0 / 16.0,
            ..ReuseCounts::default()
        };
        for _ in 0..60 {
            now += Duration::from_secs(1);
            counts.reuse.accesses += 6000;
            (0..6000).for_each(|_| counts.reuse.count(Some(40_000), 1));
            sparse.record(counts.clone(), CAPACITY, now);
        }
        let blocks = sparse.working_set().bytes / (BLOCK / 16);
        assert!((40_000..50_000).contains(&blocks), "{blocks}");
    }

    #[test]
    fn a_tenant_that_reads_little_of_its_set_is_idle() {
        // Blocks a second that it reads afterwards, and whether it uses its set. The set has 6,750 blocks with the margin:
        // 11 a second go through it in ten minutes.
        for (blocks, uses) in [(0, false), (8, false), (15, true), (600, true)] {
            let (mut reuse, mut counts, mut now) = reader();
            let set = reuse.working_set().bytes / BLOCK;
            assert!((6_000..7_500).contains(&set), "{set}");
            assert_eq!(reuse.idle_for(), Some(Duration::ZERO));
            for _ in 0..20 {
                now += Duration::from_secs(1);
                read(&mut counts, blocks, false);
                reuse.record(counts.clone(), CAPACITY, now);
            }
            let idle = reuse.idle_for().unwrap();
            assert_eq!(idle == Duration::ZERO, uses, "{blocks}: {idle:?}");
            assert_eq!(idle == Duration::from_secs(20), !uses, "{blocks}: {idle:?}");
        }
    }
}
