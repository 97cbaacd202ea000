//! A pool's miss-ratio curve as the statistics have it.

use super::pool::Pool;
use crate::block::BLOCK_BYTES;
use justitia_api::CurveStatus;
use justitia_share::num::{to_f64, to_u64};

/// The curve of a pool by its size in memory and on the SSD together; `None` while little was accessed.
pub(super) fn status(pool: &Pool) -> Option<CurveStatus> {
    let bytes = |blocks: f64| to_u64(blocks * to_f64(BLOCK_BYTES));
    let steps = pool.curve.steps().into_iter();
    let points: Vec<_> = steps.map(|(size, misses)| (bytes(size), misses)).collect();
    (!points.is_empty()).then(|| CurveStatus {
        accesses: pool.curve.rate(pool.count.gets()),
        points,
    })
}
