//! From reuse times to a curve: the average eviction time.

use super::decayed::{DecayedHistogram, HALF_LIFE};
use super::reuse_times::WHOLE;
use super::reuse_times::least;
use crate::num::to_f64;
use std::time::Duration;

/// The part of the censored accesses (of which it is not known when, or whether, the block was used before) that counts
/// as later still. Where few were observed for long enough, one reuse says little.
const CENSORED_LATER: f64 = 0.01;

/// Accesses too many, in standard deviations, that are of the blocks that are sampled: nearly all.
const MOST_TOO_MANY: f64 = 3.0;
/// Accesses too few that are taken to lie where those of sampled blocks do. The others may be of a block that is used more
/// than any that is sampled; so they count as hits of the smallest cache.
const MOST_TOO_FEW: f64 = 0.5;

/// A point of a curve.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Point {
    /// Size of the cache, blocks.
    pub(super) size: f64,
    /// Accesses, of those counted lately, that a cache of this size would have had.
    pub(super) hits: f64,
}

/// The accesses that the sampled blocks have too few of, or too many (below 0), as far as that is chance: of the blocks that
/// are used much more than others one more is sampled, or one less. It lies where the accesses of these lie.
struct Lacking {
    all: f64,
    /// The part that lies beyond the buckets so far, 0 to 1.
    left: f64,
    /// What of [`DecayedHistogram::of_frequent`] is one.
    whole: f64,
}

impl Lacking {
    fn of(recent: &DecayedHistogram) -> Self {
        let sampled = recent.sampled();
        let whole: f64 = recent.of_frequent.iter().sum();
        // Each sampled block stands for as many as are sampled of one: it is there or is not, with all its accesses. With
        // n accesses of a block, of which each stands for s, the variance of the sum is s² · Σ n².
        let deviation = (sampled * whole / to_f64(WHOLE)).sqrt();
        let (too_many, too_few) = (MOST_TOO_MANY * deviation, MOST_TOO_FEW * deviation);
        Self {
            all: (recent.accesses - sampled).clamp(-too_many, too_few),
            left: 1.0,
            whole,
        }
    }

    /// What lies beyond this bucket; to be called with one after the other.
    fn beyond(&mut self, recent: &DecayedHistogram, bucket: usize) -> f64 {
        let here = recent.of_frequent.get(bucket).copied().unwrap_or(0.0);
        if self.whole > 0.0 {
            self.left = (self.left - here / self.whole).max(0.0);
        }
        self.all * self.left
    }
}

/// A miss-ratio curve: the hits by size of the cache.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MissRatioCurve {
    /// Sizes and hits ascend. The first is (0, 0); empty when nothing was counted.
    pub(super) points: Vec<Point>,
    /// All accesses that were counted lately.
    accesses: f64,
}

impl MissRatioCurve {
    /// The curve of a cache that evicts what was used longest ago.
    ///
    /// A block that is not used again is evicted once it has lain there for the average eviction time T. Of all blocks
    /// that were used the part P(t) is not used again within t. The sum of P(t) over t up to T fills the cache:
    /// size(T) = Σ P(t), and P(T) is the part of the accesses that miss (AET, section 3).
    ///
    /// An access of which no earlier one is known tells only that there was none for as long as the tenant has been
    /// observed. P(t) is estimated from those that were observed for longer than t (Kaplan and Meier, 1958): what was read
    /// before the observation began is not taken for what is never read again.
    ///
    /// Where the sampled blocks have more or fewer accesses than their part of all blocks, it is for blocks that are used
    /// all the time: the difference is counted as hits of the smallest cache (SHARDS, section 4.3, "SHARDS-adj"); as far as
    /// blocks that are sampled explain it ([`ReuseTimes::of_frequent`](super::ReuseTimes::of_frequent)), at their distances.
    #[must_use]
    pub fn of(recent: &DecayedHistogram) -> Self {
        let most = recent.accesses / recent.sampled();
        let mut size = 0.0;
        Self::with_sizes(recent, |bucket, later, rest| {
            let width = to_f64(least(bucket + 1) - least(bucket));
            size += width * f64::midpoint(later.min(most), rest.min(most));
            size
        })
    }

    /// The same from reuse distances: those up to the size hit (SHARDS, section 3). No assumption is made on how accesses
    /// follow each other.
    #[must_use]
    pub fn of_distances(recent: &DecayedHistogram) -> Self {
        Self::with_sizes(recent, |bucket, _, _| to_f64(least(bucket + 1)))
    }

    /// `size` is the size of the cache for which all reuses in a bucket hit: its number, the part of the accesses that are
    /// not reused before it, and the part that are not by its end.
    fn with_sizes(recent: &DecayedHistogram, mut size: impl FnMut(usize, f64, f64) -> f64) -> Self {
        let sampled = recent.sampled();
        if sampled <= 0.0 {
            return Self::default();
        }
        let accesses = recent.accesses;
        let mut lacking = Lacking::of(recent);
        let mut points = vec![Point {
            size: 0.0,
            hits: 0.0,
        }];
        // Accesses of which it is known whether they come within the bucket, and of which it is not; the part that comes
        // later or never.
        let (mut known, mut all_censored, mut later) = (sampled, 0.0, 1.0);
        let mut least_hits = 0.0;
        let last = recent.times.iter().rposition(|count| *count > 0.0);
        let counts = recent.times.iter().zip(recent.censored.iter());
        for (index, (count, censored)) in counts.enumerate().take(last.map_or(0, |last| last + 1)) {
            // Those of which it is known for half of the bucket count half.
            let among = (known - censored / 2.0).max(CENSORED_LATER.mul_add(all_censored, *count));
            let rest = later * (1.0 - count / among);
            let size = size(index, later, rest);
            let beyond = lacking.beyond(recent, index);
            (known, all_censored, later) =
                (known - count - censored, all_censored + censored, rest);
            points.push(Point {
                size,
                hits: (accesses - later * sampled - beyond).clamp(least_hits, accesses),
            });
            least_hits = points.last().map_or(0.0, |point| point.hits);
        }
        Self { points, accesses }
    }

    /// The part of the accesses that a cache of `size` blocks misses, 0 to 1; `None` when nothing was counted.
    #[must_use]
    pub fn miss_ratio(&self, size: u64) -> Option<f64> {
        (self.accesses > 0.0)
            .then(|| (1.0 - self.hits(to_f64(size)) / self.accesses).clamp(0.0, 1.0))
    }

    /// Sizes in blocks, and the part of the accesses that a cache of this size misses, 0 to 1: those points of the curve
    /// at which it has fallen by `least`, 0 to 1, since the one before, the first and the last. Between them it is a
    /// straight line to within `least`.
    #[must_use]
    pub fn steps(&self, least: f64) -> Vec<(f64, f64)> {
        let misses = |point: &Point| (1.0 - point.hits / self.accesses).clamp(0.0, 1.0);
        let mut steps: Vec<(f64, f64)> = Vec::new();
        for (i, point) in self.points.iter().enumerate() {
            let fallen = |last: &(f64, f64)| last.1 - misses(point) >= least;
            if steps.last().is_none_or(fallen) || i + 1 == self.points.len() {
                // The one before, too: the curve may fall steeply after a plain.
                if let Some(before) = i.checked_sub(1).and_then(|i| self.points.get(i))
                    && steps.last().is_some_and(|last| last.0 < before.size)
                {
                    steps.push((before.size, misses(before)));
                }
                steps.push((point.size, misses(point)));
            }
        }
        steps
    }

    /// Accesses that were counted lately, with those long ago as far as they are remembered
    /// ([`HALF_LIFE`](super::HALF_LIFE)): a number of them, not a rate.
    #[must_use]
    pub const fn accesses(&self) -> f64 {
        self.accesses
    }

    /// The size in blocks from which on more is of no use, as far as was seen; 0 when nothing is used again.
    #[must_use]
    pub fn largest(&self) -> f64 {
        self.points.last().map_or(0.0, |point| point.size)
    }

    /// Hits of a cache of `size` blocks, between two points by a straight line.
    pub(super) fn hits(&self, size: f64) -> f64 {
        let next = self.points.partition_point(|point| point.size < size);
        match (
            next.checked_sub(1).and_then(|i| self.points.get(i)),
            self.points.get(next),
        ) {
            (Some(low), Some(high)) if high.size > low.size => {
                let part = (size - low.size) / (high.size - low.size);
                part.mul_add(high.hits - low.hits, low.hits)
            }
            (_, Some(point)) | (Some(point), None) => point.hits,
            (None, None) => 0.0,
        }
    }
}

// The working set of a tenant.

/// The break-even interval: a block is worth its place if keeping it saves at least one read in this time. (The
/// five-minute rule of memory against disks: Gray and Putzolu, SIGMOD '87. Doubled, so that what is used every few
/// minutes is never evicted for what is read once.)
pub const BREAK_EVEN: Duration = Duration::from_secs(600);
/// The part of all possible hits that a working set has; the size that the last ones would need is left out. The model
/// takes a first access as one to a block that is never accessed again, so the last few hits need a large cache.
const HITS_KEPT: f64 = 0.99;

impl MissRatioCurve {
    /// The working set in blocks, at most `capacity` blocks: the size up to which one block more saves at least
    /// one read in 600 seconds, and that has nearly all of the hits there.
    ///
    /// What a size is worth is judged from the best smaller size on (the upper concave hull of the curve): of a loop over
    /// 1,000 blocks the first 999 save nothing, all together save everything. A loop over more than `capacity` saves
    /// nothing. A stream with a few re-reads saves too little for all that would have to lie there in between.
    #[must_use]
    pub fn working_set(&self, capacity: f64) -> f64 {
        // What a count is worth that goes on for ever: counts decay.
        let counted = HALF_LIFE.mean_life().as_secs_f64();
        let least = counted / BREAK_EVEN.as_secs_f64();
        let worth = |pair: &&[Point]| match pair {
            [low, high] => high.hits - low.hits >= least * (high.size - low.size),
            _ => false,
        };
        let hull = self.hull(capacity);
        let Some(last) = hull
            .windows(2)
            .take_while(worth)
            .last()
            .and_then(|pair| pair.last())
        else {
            return 0.0;
        };
        let enough = hull
            .iter()
            .find(|point| point.hits >= HITS_KEPT * last.hits);
        enough.map_or(last.size, |point| point.size)
    }

    /// The upper concave hull of the curve up to `capacity`.
    fn hull(&self, capacity: f64) -> Vec<Point> {
        let inside = self
            .points
            .iter()
            .copied()
            .filter(|point| point.size < capacity);
        let end = (self.largest() >= capacity).then(|| Point {
            size: capacity,
            hits: self.hits(capacity),
        });
        let mut hull: Vec<Point> = Vec::new();
        for point in inside.chain(end) {
            while let [.., before, last] = hull.as_slice() {
                let (rise, run) = (last.hits - before.hits, last.size - before.size);
                let (rise_on, run_on) = (point.hits - before.hits, point.size - before.size);
                if rise * run_on > rise_on * run {
                    break;
                }
                hull.pop();
            }
            hull.push(point);
        }
        hull
    }
}
