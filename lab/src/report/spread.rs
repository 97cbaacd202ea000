//! The median of repeats, and how far they lie apart.

/// What several repeats gave: their median, smallest and largest. The range rather than a
/// deviation, because there are few repeats and they all count.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Spread {
    /// The median; of an even number, the mean of the middle two.
    pub median: f64,
    /// The smallest.
    pub low: f64,
    /// The largest.
    pub high: f64,
    /// How many repeats.
    pub repeats: usize,
}

impl Spread {
    /// Of the given values; `None` if there are none. NaN does not count.
    pub(super) fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut sorted: Vec<f64> = values.into_iter().filter(|v| !v.is_nan()).collect();
        sorted.sort_by(f64::total_cmp);
        let upper = *sorted.get(sorted.len() / 2)?;
        let lower = *sorted.get((sorted.len().checked_sub(1)?) / 2)?;
        Some(Self {
            // Not the mean of two equal ones: infinity would become NaN below zero.
            median: if lower.total_cmp(&upper).is_eq() {
                upper
            } else {
                f64::midpoint(lower, upper)
            },
            low: *sorted.first()?,
            high: *sorted.last()?,
            repeats: sorted.len(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_and_ranges() {
        let of = |values: &[f64]| Spread::of(values.iter().copied());
        let spread = |median, low, high, repeats| {
            Some(Spread {
                median,
                low,
                high,
                repeats,
            })
        };
        assert_eq!(of(&[]), None);
        assert_eq!(of(&[f64::NAN]), None);
        assert_eq!(of(&[4.0]), spread(4.0, 4.0, 4.0, 1));
        assert_eq!(of(&[9.0, 1.0, 2.0]), spread(2.0, 1.0, 9.0, 3));
        assert_eq!(of(&[9.0, 1.0, 2.0, 4.0]), spread(3.0, 1.0, 9.0, 4));
        let infinite = f64::INFINITY;
        assert_eq!(
            of(&[infinite, 1.0, infinite]),
            spread(infinite, 1.0, infinite, 3)
        );
    }
}
