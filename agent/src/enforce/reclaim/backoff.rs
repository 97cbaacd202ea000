//! Pauses reclaim from a tenant after requests that did not succeed.

use std::time::{Duration, Instant};

use super::pressure::OwnLimits;
use super::request::ReclaimResult;
use justitia_api::ReclaimExemption;

/// A pause begins after so many requests in a row that freed next to nothing.
const MAX_FRUITLESS: u32 = 3;
/// The longest pause is 2 to this power, seconds.
const MAX_EXPONENT: u32 = 4;
/// The pause of a tenant that thrashes, after which its pressure is read again.
const THRASHING_PAUSE: Duration = Duration::from_secs(1);

/// The backoff of one tenant.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReclaimBackoff {
    fruitless: u32,
    until: Option<(Instant, ReclaimExemption)>,
    own_limits: OwnLimits,
}

impl ReclaimBackoff {
    /// Takes a result. A tenant that thrashes pauses for a second. A tenant of which less than an eighth of the requested
    /// bytes could be freed, three times in a row, pauses for 1 s, then 2 s, at most 16 s. Returns the reason of a pause
    /// that begins.
    pub fn update(&mut self, result: &ReclaimResult, now: Instant) -> Option<ReclaimExemption> {
        self.own_limits = result.own_limits;
        if let Some(exempt) = result.exempt {
            self.until = Some((now + THRASHING_PAUSE, exempt));
            return Some(exempt);
        }
        if result.freed < result.requested / 8 {
            self.fruitless = (self.fruitless + 1).min(MAX_FRUITLESS + MAX_EXPONENT);
            if self.fruitless >= MAX_FRUITLESS {
                let pause = Duration::from_secs(1 << (self.fruitless - MAX_FRUITLESS));
                self.until = Some((now + pause, ReclaimExemption::NoProgress));
                return Some(ReclaimExemption::NoProgress);
            }
        } else {
            self.fruitless = 0;
            self.until = None;
        }
        None
    }

    /// What was known of the tenant's own limits after the last request.
    #[must_use]
    pub const fn own_limits(&self) -> OwnLimits {
        self.own_limits
    }

    /// The reason of the pause, if there is one now.
    #[must_use]
    pub fn exempt(&self, now: Instant) -> Option<ReclaimExemption> {
        self.until.filter(|(at, _)| *at > now).map(|(_, why)| why)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Key;

    fn result(freed: u64, exempt: Option<ReclaimExemption>) -> ReclaimResult {
        ReclaimResult {
            freed,
            exempt,
            ..ReclaimResult::new(Key::Unmanaged, 8 << 20)
        }
    }

    #[test]
    fn pauses_double_after_fruitless_requests() {
        let now = Instant::now();
        let mut backoff = ReclaimBackoff::default();
        let mut pauses = Vec::new();
        for n in 0..9 {
            let begins = backoff.update(&result((1 << 20) - 1, None), now);
            assert_eq!(begins, (n >= 2).then_some(ReclaimExemption::NoProgress));
            let pause = (0..60).find(|s| backoff.exempt(now + Duration::from_secs(*s)).is_none());
            pauses.push(pause);
        }
        let expected = [0, 0, 1, 2, 4, 8, 16, 16, 16].map(Some);
        assert_eq!(pauses, expected);
        assert_eq!(backoff.exempt(now), Some(ReclaimExemption::NoProgress));
        // An eighth of the requested bytes ends the pause.
        for freed in [1 << 20, 0] {
            assert_eq!(backoff.update(&result(freed, None), now), None);
            assert_eq!(backoff.exempt(now), None);
        }
    }

    #[test]
    fn a_thrashing_tenant_pauses_for_a_second_and_does_not_count_as_fruitless() {
        let now = Instant::now();
        let mut backoff = ReclaimBackoff::default();
        for _ in 0..5 {
            let thrashes = Some(ReclaimExemption::Thrashing { full_avg10: 80.0 });
            assert_eq!(backoff.update(&result(0, thrashes), now), thrashes);
        }
        let soon = now + Duration::from_millis(999);
        assert_eq!(
            backoff.exempt(soon),
            Some(ReclaimExemption::Thrashing { full_avg10: 80.0 })
        );
        assert_eq!(backoff.exempt(now + Duration::from_secs(1)), None);
    }
}
