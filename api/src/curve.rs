//! Miss-ratio curves.

use justitia_share::num::to_f64;
use serde::{Deserialize, Serialize};

/// How many of a tenant's accesses to its cache would come from the disk if its cache had another size.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CurveStatus {
    /// Accesses a second, lately, in the blocks that the cache's accesses are counted in: of the page cache 64 KiB, those
    /// to the same one in a row once; of a pool of the hypervisor cache 4 KiB.
    pub accesses: f64,
    /// Sizes of the cache, bytes, ascending from 0, and the part of the accesses that it would miss, 0 to 1. Between two
    /// points a straight line; beyond the last as there.
    pub points: Vec<(u64, f64)>,
}

impl CurveStatus {
    /// The curve of what a cache holds beyond `bytes`.
    #[must_use]
    pub fn beyond(&self, bytes: u64) -> Self {
        let later = self.points.iter().filter(|(size, _)| *size > bytes);
        let later = later.map(|(size, misses)| (size - bytes, *misses));
        Self {
            accesses: self.accesses,
            points: std::iter::once((0, self.miss_ratio(bytes)))
                .chain(later)
                .collect(),
        }
    }

    /// The part of the accesses that a cache of `size` bytes misses, 0 to 1; 1 without any point.
    #[must_use]
    pub fn miss_ratio(&self, size: u64) -> f64 {
        let next = self.points.partition_point(|point| point.0 < size);
        let before = next.checked_sub(1).and_then(|i| self.points.get(i));
        match (before, self.points.get(next)) {
            (Some(low), Some(high)) => {
                let part = to_f64(size - low.0) / to_f64((high.0 - low.0).max(1));
                part.mul_add(high.1 - low.1, low.1)
            }
            (Some(point), None) | (None, Some(point)) => point.1,
            (None, None) => 1.0,
        }
    }
}
