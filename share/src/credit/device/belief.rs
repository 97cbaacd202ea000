//! What is found out only by letting go for a moment, and is taken for granted in between.

use super::COUPLED;

/// What comes back within so many seconds is the same thing.
const SOON: f64 = 10.0;

/// Something that was found, and holds for a time: each time that it comes back soon after that, for twice as long.
#[derive(Clone, Copy, Debug)]
pub(super) struct Belief {
    /// For how many seconds it holds at first, and at most.
    first: f64,
    longest: f64,
    /// For so many seconds more.
    left: f64,
    /// For so many seconds it did, the last time.
    lasted: f64,
    /// Since then, seconds.
    since: f64,
}

impl Default for Belief {
    /// The usual one.
    fn default() -> Self {
        COUPLED
    }
}

impl Belief {
    /// Nothing was found yet.
    pub(super) const fn new(first: f64, longest: f64) -> Self {
        Self {
            first,
            longest,
            left: 0.0,
            lasted: 0.0,
            since: 0.0,
        }
    }

    /// Takes in an interval: whether it was `found`. While it holds that says nothing.
    pub(super) fn step(&mut self, found: bool, seconds: f64) {
        if self.holds() {
            (self.left, self.since) = (self.left - seconds, 0.0);
        } else if found {
            let again = self.since < SOON;
            let lasted = if again { self.lasted * 2.0 } else { 0.0 };
            self.lasted = lasted.clamp(self.first, self.longest);
            self.left = self.lasted;
        } else {
            self.since += seconds;
        }
    }

    /// Whether it is taken for granted.
    pub(super) const fn holds(&self) -> bool {
        self.left > 0.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// For how many seconds it holds once found, and then again as often, `pause` seconds after the end.
    fn lasts(pause: u32, often: usize) -> Vec<u32> {
        let mut belief = Belief::new(5.0, 60.0);
        let mut lasts = Vec::new();
        for _ in 0..often {
            (0..pause).for_each(|_| belief.step(false, 1.0));
            assert!(!belief.holds());
            belief.step(true, 1.0);
            let mut seconds = 0;
            while belief.holds() {
                belief.step(true, 1.0);
                seconds += 1;
            }
            lasts.push(seconds);
        }
        lasts
    }

    #[test]
    fn what_comes_back_soon_is_believed_for_longer() {
        assert_eq!(lasts(2, 6), [5, 10, 20, 40, 60, 60]);
        assert_eq!(lasts(10, 3), [5, 5, 5]);
    }
}
