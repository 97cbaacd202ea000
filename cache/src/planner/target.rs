//! What a pool is to reach.

use justitia_share::Fraction;
use serde::{Deserialize, Serialize};

/// What a pool is to reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Target {
    /// The part of its gets that hit, in per cent, 1 to 99.
    HitPercent(u8),
    /// How long a get waits for the disk on average, hits counted as 0, microseconds.
    ReadLatencyUs(u32),
}

impl Target {
    /// What can be declared, in words.
    pub(crate) const EXPECTED: &str = "1 to 99 per cent of hits, or a latency of at least 1 us";

    /// Is it one that can be declared: 1 to 99 per cent, or at least a microsecond?
    #[must_use]
    pub const fn is_valid(self) -> bool {
        match self {
            Self::HitPercent(percent) => 1 <= percent && percent <= 99,
            Self::ReadLatencyUs(most) => most > 0,
        }
    }

    /// The hit ratio that it takes, when a miss waits for the disk for `miss_us` microseconds on average; `None` for a
    /// latency while that is not known.
    pub(crate) fn hit_ratio(self, miss_us: Option<f64>) -> Option<Fraction> {
        match self {
            Self::HitPercent(percent) => Some(Fraction::of(percent.into(), 100)),
            Self::ReadLatencyUs(most) => {
                let misses = f64::from(most) / miss_us.filter(|time| *time > 0.0)?;
                Some(Fraction::clamped(1.0 - misses))
            }
        }
    }
}

impl std::fmt::Display for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::HitPercent(percent) => write!(f, "{percent} % hits"),
            Self::ReadLatencyUs(most) => write!(f, "{most} us a read"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_latency_is_a_hit_ratio_once_the_disk_is_known() {
        for (target, miss_us, expected) in [
            (Target::HitPercent(90), None, Some(0.9)),
            (Target::ReadLatencyUs(200), Some(1000.0), Some(0.8)),
            (Target::ReadLatencyUs(2000), Some(1000.0), Some(0.0)),
            (Target::ReadLatencyUs(200), None, None),
            (Target::ReadLatencyUs(200), Some(0.0), None),
        ] {
            let found = target.hit_ratio(miss_us).map(Fraction::get);
            assert_eq!(found, expected, "{target}");
        }
    }
}
