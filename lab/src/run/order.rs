//! Which run comes when, and how long the rest may take.

use std::time::Duration;

use crate::experiment::Configuration;

/// Every repeat has all configurations in an order of its own.
pub(super) fn order(
    configurations: &[Configuration],
    mglru: &[Option<bool>],
    repeat: u32,
    seed: u64,
) -> Vec<(Configuration, Option<bool>, u32)> {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut all = Vec::new();
    for number in 0..repeat {
        let mut once: Vec<_> = configurations
            .iter()
            .flat_map(|configuration| mglru.iter().map(|on| (configuration.clone(), *on, number)))
            .collect();
        random.shuffle(&mut once);
        all.extend(once);
    }
    all
}

/// How long the rest may take, at the pace of the runs so far.
pub(super) fn left(elapsed: Duration, done: usize, all: usize) -> String {
    let (Ok(done), Ok(rest)) = (u32::try_from(done), u32::try_from(all.saturating_sub(done)))
    else {
        return String::new();
    };
    match elapsed.checked_div(done) {
        None => String::new(),
        Some(each) => {
            let seconds = (each * rest).as_secs();
            format!(", about {} min {:02} s left", seconds / 60, seconds % 60)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_repeat_has_all_configurations_once_and_the_seed_decides_the_order() {
        let all = Configuration::all();
        let runs = order(&all, &[Some(true), Some(false)], 3, 7);
        assert_eq!(runs.len(), all.len() * 2 * 3);
        for configuration in &all {
            for repeat in 0..3 {
                let found = runs
                    .iter()
                    .filter(|(c, _, r)| c == configuration && *r == repeat);
                assert_eq!(found.count(), 2, "{} {repeat}", configuration.id);
            }
        }
        assert_eq!(runs, order(&all, &[Some(true), Some(false)], 3, 7));
        assert_ne!(runs, order(&all, &[Some(true), Some(false)], 3, 8));
    }

    #[test]
    fn the_time_left_is_estimated_from_the_runs_so_far() {
        assert_eq!(left(Duration::ZERO, 0, 5), "");
        assert_eq!(
            left(Duration::from_secs(60), 2, 5),
            ", about 1 min 30 s left"
        );
    }
}
