//! How far what tenants got is from their weights: proportionality variation, and Jain's index.

use crate::Weight;
use crate::num::to_f64;

/// Proportionality variation (Justitia, equation 2): the mean of |ideal − actual| after both are
/// normalised to the lowest weight's. 0 is perfect proportion; what counts as far off grows with the
/// spread of the weights.
///
/// `actual` is what each tenant got, in the order of the weights: any unit, the same for all, not negative. PV has no
/// unit and is at least 0; what has no counterpart in the other list does not count.
///
/// Where several tenants share the lowest weight, the mean of what they got is the unit. Infinite if
/// the lowest got nothing while another tenant got something; `None` without tenants or when none got
/// anything.
#[must_use]
pub fn pv(weights: &[Weight], actual: &[f64]) -> Option<f64> {
    let ideal: Vec<f64> = weights.iter().map(|w| to_f64(w.get())).collect();
    of_proportions(&ideal, actual)
}

/// [`pv`] where what is ideal is given as any positive numbers in proportion: the leaves of a weight tree
/// have products of shares there, see [`FairnessWindow`](crate::fairness_window::FairnessWindow).
pub(crate) fn of_proportions(ideal: &[f64], actual: &[f64]) -> Option<f64> {
    let lowest = ideal.iter().copied().reduce(f64::min)?;
    // Products of the same shares in another order may differ in their last bits.
    let is_lowest = |part: f64| part <= lowest * (1.0 + 1e-9);
    let unit = mean(
        actual
            .iter()
            .zip(ideal)
            .filter(|(_, part)| is_lowest(**part))
            .map(|(a, _)| *a),
    )?;
    if actual.iter().all(|a| *a <= 0.0) {
        return None;
    }
    if unit <= 0.0 {
        return Some(f64::INFINITY);
    }
    mean(
        actual
            .iter()
            .zip(ideal)
            .map(|(a, part)| (part / lowest - a / unit).abs()),
    )
}

/// Jain's fairness index of what each tenant got for its weight (Jain, Chiu and Hawe, DEC-TR-301, 1984): 1 is perfect
/// proportion, 1/n is that one of n has everything. Other than [`pv`] it hardly sees a tenant of little weight.
///
/// `actual` as in [`pv`]. `None` without tenants or when none got anything.
#[must_use]
pub fn jain(weights: &[Weight], actual: &[f64]) -> Option<f64> {
    let got = |(weight, actual): (&Weight, &f64)| actual / to_f64(weight.get());
    let each = || weights.iter().zip(actual).map(got);
    let squares = mean(each().map(|got| got * got))?;
    (squares > 0.0).then_some(mean(each())?.powi(2) / squares)
}

fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let (sum, count) = values.fold((0.0, 0.0), |(s, n), v| (s + v, n + 1.0));
    (count > 0.0).then(|| sum / count)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn weights(values: &[u64]) -> Vec<Weight> {
        values
            .iter()
            .map(|w| Weight::try_from(*w).unwrap())
            .collect()
    }

    #[test]
    fn figures_of_the_justitia_paper() {
        // Section IV-B: Fileserver ×8, conventional and Justitia ("36.9 % better").
        let eight = weights(&[100, 200, 300, 400, 500, 600, 700, 800]);
        let conv = pv(&eight, &[1.0, 1.51, 2.02, 2.40, 2.63, 2.71, 3.07, 3.31]).unwrap();
        let justitia = pv(&eight, &[1.0, 1.73, 2.24, 2.65, 3.04, 3.75, 4.37, 6.26]).unwrap();
        assert!((conv - 2.17).abs() < 0.005, "{conv}");
        assert!((justitia - 1.37).abs() < 0.005, "{justitia}");
        assert!((1.0 - justitia / conv - 0.369).abs() < 0.002);
        // Section IV-E: Re-read under memory cgroups and Justitia; section IV-F: Justitia with ageing.
        let four = weights(&[100, 200, 400, 800]);
        assert!((pv(&four, &[1.0, 2.02, 3.91, 8.46]).unwrap() - 0.14).abs() < 0.005);
        assert!((pv(&four, &[1.0, 1.15, 1.60, 4.53]).unwrap() - 1.67).abs() < 0.02);
        let starved = weights(&[100, 1000, 1000, 1000, 1000, 1000, 1000, 1000]);
        let aged = [1.0, 8.94, 9.36, 9.08, 8.83, 9.49, 9.77, 9.43];
        assert!((pv(&starved, &aged).unwrap() - 0.64).abs() < 0.005);
    }

    #[test]
    fn edges() {
        let two = weights(&[100, 300]);
        assert_eq!(pv(&two, &[7.0, 21.0]), Some(0.0));
        assert_eq!(pv(&two, &[0.0, 21.0]), Some(f64::INFINITY));
        assert_eq!(pv(&two, &[0.0, 0.0]), None);
        assert_eq!(pv(&[], &[]), None);
        // Equal weights: the unit is their mean, not the part of the first.
        assert_eq!(pv(&weights(&[100, 100]), &[1.0, 3.0]), Some(0.5));
    }

    #[test]
    fn jains_index_is_that_of_parts_by_weight() {
        let four = weights(&[100, 200, 400, 800]);
        let index = |actual: [f64; 4]| jain(&four, &actual).unwrap();
        assert!((index([1.0, 2.0, 4.0, 8.0]) - 1.0).abs() < 1e-12);
        assert!((index([0.0, 0.0, 0.0, 8.0]) - 0.25).abs() < 1e-12);
        // (1 + 1/2 + 1/4 + 1/8)² / 4 / (1 + 1/4 + 1/16 + 1/64)
        assert!((index([5.0; 4]) - 0.661_765).abs() < 1e-6);
        assert_eq!(jain(&four, &[0.0; 4]), None);
        assert_eq!(jain(&[], &[]), None);
    }
}
