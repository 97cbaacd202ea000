//! The little that is admitted where the SSD is not worth it: runs of blocks, with long pauses.

use std::time::{Duration, Instant};

/// Blocks of a run: 1 MiB, eight reads of the kernel's readahead. Blocks that are read together come together, too.
const RUN: u32 = 256;
/// A pause is so many times as long as the run before it: one block in 64 is admitted.
const PAUSE: u32 = 63;
/// And no longer: of a pool that is hardly used.
const LONGEST: Duration = Duration::from_secs(60);

/// Where it is between runs and pauses.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sample {
    /// When the run began, and its blocks so far.
    run: Option<(Instant, u32)>,
    until: Option<Instant>,
}

impl Sample {
    /// Is a block that comes now admitted?
    pub(crate) fn admits(&mut self, now: Instant) -> bool {
        if self.until.is_some_and(|until| now < until) {
            return false;
        }
        let (begun, blocks) = self.run.unwrap_or((now, 0));
        self.until = None;
        self.run = Some((begun, blocks + 1));
        if blocks + 1 >= RUN {
            let pause = now.saturating_duration_since(begun) * PAUSE;
            self.until = Some(now + pause.min(LONGEST));
            self.run = None;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_block_in_64_is_admitted_in_runs() {
        let start = Instant::now();
        let mut sample = Sample::default();
        let admitted: Vec<bool> = (0..256 * 64 * 10)
            .map(|us| sample.admits(start + Duration::from_micros(us)))
            .collect();
        let count = admitted.iter().filter(|admitted| **admitted).count();
        assert!((2560..=2816).contains(&count), "{count}");
        let runs = admitted.windows(2).filter(|pair| !pair[0] && pair[1]);
        assert!((9..=10).contains(&runs.count()));
    }

    #[test]
    fn a_pool_that_is_hardly_used_is_sampled_all_the_same() {
        let start = Instant::now();
        let mut sample = Sample::default();
        let at = |seconds| start + Duration::from_secs(seconds);
        // A run that takes an hour.
        let run = (0..256).map(|n| n * 14);
        assert!(run.clone().all(|n| sample.admits(at(n))));
        let end = 255 * 14;
        assert!(!sample.admits(at(end + 59)));
        assert!(sample.admits(at(end + 60)));
    }
}
