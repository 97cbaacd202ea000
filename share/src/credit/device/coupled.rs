//! Tenants that wait behind each other's data, as those of one file system do for its journal.

/// Who has waited behind another may do so again within so many seconds.
const FIRST: f64 = 5.0;
/// Each time that it comes back soon after that, twice as long is taken for granted, at most so long: looking again
/// holds everybody up for a moment.
const LONGEST: f64 = 60.0;
/// What comes back within so many seconds is the same thing.
const SOON: f64 = 10.0;

/// Whether they do. Limits on writes then hold up everybody, not the limited one alone.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Coupled {
    /// So many seconds more it is taken for granted.
    left: f64,
    /// For so many seconds it was, the last time.
    lasted: f64,
    /// Since then, seconds.
    since: f64,
}

impl Coupled {
    /// Takes in an interval: whether somebody was `found` who waits behind another. While it holds that says
    /// nothing.
    pub(super) fn step(&mut self, found: bool, seconds: f64) {
        if self.holds() {
            (self.left, self.since) = (self.left - seconds, 0.0);
        } else if found {
            let again = self.since < SOON;
            let lasted = if again { self.lasted * 2.0 } else { 0.0 };
            self.lasted = lasted.clamp(FIRST, LONGEST);
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
        let mut coupled = Coupled::default();
        let mut lasts = Vec::new();
        for _ in 0..often {
            (0..pause).for_each(|_| coupled.step(false, 1.0));
            assert!(!coupled.holds());
            coupled.step(true, 1.0);
            let mut seconds = 0;
            while coupled.holds() {
                coupled.step(true, 1.0);
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
