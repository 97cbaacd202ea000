//! The sizes of the files of a set.

use justitia_share::num::{to_f64, to_u64};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use rand_distr::{Distribution, Gamma};

use crate::personality::Sizes;

/// Filebench's shape of the gamma distribution of file sizes.
const SHAPE: f64 = 1.5;

/// `count` sizes in bytes around `mean`, at least 1 each; the same for the same seed.
pub(crate) fn draw(sizes: Sizes, mean: u64, count: u32, seed: u64) -> Vec<u64> {
    let gamma = match sizes {
        // Refused only for a mean of 0, where every file is one byte anyway.
        Sizes::Gamma => Gamma::new(SHAPE, to_f64(mean) / SHAPE).ok(),
        Sizes::Equal => None,
    };
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    (0..count)
        .map(|_| match &gamma {
            Some(gamma) => to_u64(gamma.sample(&mut rng)).max(1),
            None => mean.max(1),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gamma_has_the_mean_and_the_spread_of_its_definition() {
        for seed in 1..=5 {
            let mean = 131_072;
            let sizes = draw(Sizes::Gamma, mean, 20_000, seed);
            let n = to_f64(sizes.len() as u64);
            let average = sizes.iter().map(|s| to_f64(*s)).sum::<f64>() / n;
            let variance = sizes
                .iter()
                .map(|s| (to_f64(*s) - average).powi(2))
                .sum::<f64>()
                / n;
            let relative = |value: f64, expected: f64| (value / expected - 1.0).abs();
            // Standard error of the mean: 0.8165/sqrt(20000) = 0.58 %; five of them.
            assert!(relative(average, to_f64(mean)) < 0.029, "mean {average}");
            // A gamma of shape k has a relative deviation of 1/sqrt(k).
            let deviation = variance.sqrt() / average;
            assert!(relative(deviation, SHAPE.sqrt().recip()) < 0.05);
            // P(X < mean) for shape 1.5 is 0.6084 (regularised lower incomplete gamma P(1.5, 1.5)).
            let below = to_f64(sizes.iter().filter(|s| **s < mean).count() as u64) / n;
            assert!((below - 0.6084).abs() < 0.018, "below the mean: {below}");
        }
    }

    #[test]
    fn the_seed_decides() {
        let draw = |seed| draw(Sizes::Gamma, 16_384, 100, seed);
        assert_eq!(draw(1), draw(1));
        assert_ne!(draw(1), draw(2));
    }

    #[test]
    fn equal_sizes_are_equal_and_never_empty() {
        assert_eq!(draw(Sizes::Equal, 4096, 3, 9), [4096; 3]);
        assert_eq!(draw(Sizes::Equal, 0, 2, 9), [1, 1]);
        assert_eq!(draw(Sizes::Gamma, 0, 2, 9), [1, 1]);
    }
}
