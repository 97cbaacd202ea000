//! A pool's miss-ratio curve as the statistics have it.

use super::pool_curve::PoolCurve;
use crate::block::BLOCK_BYTES;
use justitia_share::num::{to_f64, to_u64};
use serde::Serialize;

/// A point of a curve.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct CurvePoint {
    /// A size of the pool, memory and SSD together, bytes.
    pub bytes: u64,
    /// The part of its gets that it would miss with this size, 0 to 1.
    pub miss_ratio: f64,
}

/// The points of a curve, sizes ascending; empty while little was accessed.
pub(super) fn points(curve: &PoolCurve) -> Vec<CurvePoint> {
    let steps = curve.steps().into_iter();
    let points = steps.map(|(blocks, miss_ratio)| CurvePoint {
        bytes: to_u64(blocks * to_f64(BLOCK_BYTES)),
        miss_ratio,
    });
    points.collect()
}
