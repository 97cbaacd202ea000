//! Residual credits carry-over: ℛ of the slides ("Overview of WDT Scheme": a tenant goes on while
//! ℬ + ℛ > 𝒰, budget plus residual above usage).

/// Credits that a tenant did not use, or used beyond its budget, bounded both ways.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Residual(f64);

impl Residual {
    /// The budget of an interval was `budget`, `used` was spent; both in credits. What is carried never
    /// exceeds `bound` (0 and above) times the budget, in either direction: idleness saves no more than
    /// that, and an overdraft is paid back from later budgets, never all at once.
    pub fn settle(&mut self, budget: f64, used: f64, bound: f64) {
        let most = (bound * budget).max(0.0);
        self.0 = (self.0 + budget - used).clamp(-most, most);
    }

    /// The credits carried; below 0 they are owed.
    #[must_use]
    pub const fn credits(self) -> f64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_is_carried_is_bounded(rounds in proptest::collection::vec((0.0..10.0f64, 0.0..20.0f64), 1..50), bound in 0.0..2.0f64) {
            let mut residual = Residual::default();
            for (budget, used) in rounds {
                residual.settle(budget, used, bound);
                prop_assert!(residual.credits().abs() <= bound * budget + 1e-9);
            }
        }
    }

    #[test]
    fn what_was_saved_can_be_spent() {
        let mut residual = Residual::default();
        residual.settle(1.0, 0.75, 0.5);
        assert!((residual.credits() - 0.25).abs() < 1e-9);
        residual.settle(1.0, 1.25, 0.5);
        assert!(residual.credits().abs() < 1e-9);
        residual.settle(1.0, 4.0, 0.5);
        assert!((residual.credits() + 0.5).abs() < 1e-9);
    }
}
