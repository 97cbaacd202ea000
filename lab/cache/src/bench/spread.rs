//! Several measurements of the same thing.

use justitia_share::num::to_f64;
use std::time::Duration;

/// The median of several measurements, and the lowest and the highest of them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    /// Half are below.
    pub median: f64,
    /// The lowest.
    pub low: f64,
    /// The highest.
    pub high: f64,
}

impl Spread {
    /// Of no measurement everything is 0.
    #[must_use]
    pub fn of(mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        let at = |i: usize| values.get(i).copied().unwrap_or(0.0);
        Self {
            median: at(values.len() / 2),
            low: at(0),
            high: at(values.len().saturating_sub(1)),
        }
    }
}

impl std::fmt::Display for Spread {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{:.2} ({:.2} to {:.2})",
            self.median, self.low, self.high
        )
    }
}

/// Operations a second.
pub(super) fn rate(count: u64, time: Duration) -> f64 {
    to_f64(count) / time.as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spread_is_in_order() {
        let spread = Spread::of(vec![3.0, 1.0, 2.0]);
        assert_eq!((spread.low, spread.median, spread.high), (1.0, 2.0, 3.0));
        assert_eq!(Spread::of(Vec::new()).median, 0.0);
    }
}
