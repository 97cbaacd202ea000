//! How long a tenant is left alone after an order that did not go well.

use std::time::{Duration, Instant};

use super::pressure::OwnLimits;
use super::worker::Outcome;
use justitia_api::ReclaimExemption;

/// After so many orders in a row that freed next to nothing, a tenant rests.
const FRUITLESS: u32 = 3;
/// The longest rest is 2 to this power, seconds.
const LONGEST: u32 = 4;
/// How long a tenant that thrashes is left alone before its pressure is read again.
const THRASHING: Duration = Duration::from_secs(1);

/// How a tenant has taken to being reclaimed from.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rest {
    fruitless: u32,
    until: Option<(Instant, ReclaimExemption)>,
    own_limits: OwnLimits,
}

impl Rest {
    /// Takes note of what came of an order: a tenant that thrashes rests for a second, one of which less than
    /// an eighth of what was asked could be had, three times in a row, for 1 s, then 2 s, at most 16 s. Says why
    /// it rests, if it begins to.
    pub fn judge(&mut self, outcome: &Outcome, now: Instant) -> Option<ReclaimExemption> {
        self.own_limits = outcome.own_limits;
        if let Some(exempt) = outcome.exempt {
            self.until = Some((now + THRASHING, exempt));
            return Some(exempt);
        }
        if outcome.freed < outcome.asked / 8 {
            self.fruitless = (self.fruitless + 1).min(FRUITLESS + LONGEST);
            if self.fruitless >= FRUITLESS {
                let pause = Duration::from_secs(1 << (self.fruitless - FRUITLESS));
                self.until = Some((now + pause, ReclaimExemption::NoProgress));
                return Some(ReclaimExemption::NoProgress);
            }
        } else {
            self.fruitless = 0;
            self.until = None;
        }
        None
    }

    /// What was known of its own limits after the last order.
    #[must_use]
    pub const fn own_limits(&self) -> OwnLimits {
        self.own_limits
    }

    /// Why it is left alone at this moment, if it is.
    #[must_use]
    pub fn exempt(&self, now: Instant) -> Option<ReclaimExemption> {
        self.until.filter(|(at, _)| *at > now).map(|(_, why)| why)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Key;

    fn outcome(freed: u64, exempt: Option<ReclaimExemption>) -> Outcome {
        Outcome {
            key: Key::Unmanaged,
            asked: 8 << 20,
            freed,
            beside: 0,
            after: None,
            exempt,
            own_limits: OwnLimits::default(),
            error: None,
            took: Duration::ZERO,
        }
    }

    #[test]
    fn fruitless_orders_make_ever_longer_rests() {
        let now = Instant::now();
        let mut rest = Rest::default();
        let mut pauses = Vec::new();
        for n in 0..9 {
            let begins = rest.judge(&outcome((1 << 20) - 1, None), now);
            assert_eq!(begins, (n >= 2).then_some(ReclaimExemption::NoProgress));
            let pause = (0..60).find(|s| rest.exempt(now + Duration::from_secs(*s)).is_none());
            pauses.push(pause);
        }
        let expected = [0, 0, 1, 2, 4, 8, 16, 16, 16].map(Some);
        assert_eq!(pauses, expected);
        assert_eq!(rest.exempt(now), Some(ReclaimExemption::NoProgress));
        // An eighth of what was asked ends it.
        for freed in [1 << 20, 0] {
            assert_eq!(rest.judge(&outcome(freed, None), now), None);
            assert_eq!(rest.exempt(now), None);
        }
    }

    #[test]
    fn who_thrashes_rests_a_second_and_is_not_called_fruitless() {
        let now = Instant::now();
        let mut rest = Rest::default();
        for _ in 0..5 {
            let thrashes = Some(ReclaimExemption::Thrashing { full_avg10: 80.0 });
            assert_eq!(rest.judge(&outcome(0, thrashes), now), thrashes);
        }
        let soon = now + Duration::from_millis(999);
        assert_eq!(
            rest.exempt(soon),
            Some(ReclaimExemption::Thrashing { full_avg10: 80.0 })
        );
        assert_eq!(rest.exempt(now + Duration::from_secs(1)), None);
    }
}
