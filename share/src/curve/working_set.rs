//! The working set of a tenant.

use std::time::Duration;

use super::decayed::HALF_LIFE;
use super::miss_ratio::{MissRatioCurve, Point};

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
