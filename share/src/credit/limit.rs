//! From credits to the numbers that `io.max` takes.

use super::price::{Flow, Prices, USUAL};
use crate::num;

/// Limits of one tenant on one device, as `io.max` has them; `None` is `max`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Bytes read per second.
    pub rbps: Option<u64>,
    /// Bytes written per second.
    pub wbps: Option<u64>,
    /// Reads per second.
    pub riops: Option<u64>,
    /// Writes per second.
    pub wiops: Option<u64>,
}

/// No limit is below this, bytes per second: nobody starves, and no single request waits for long.
pub const LEAST_BYTES: f64 = 131_072.0;
/// Nor below this, requests per second.
pub const LEAST_REQUESTS: f64 = 8.0;
/// Nor above these, which no device reaches: the kernel says `max` for the largest numbers that it can hold, and ours
/// must come back as it was written.
const MOST_BYTES: f64 = 1e12;
const MOST_REQUESTS: f64 = 1e9;
/// A direction gets at least this part of the tenant's credits, and [`WOBBLE`], so that it can begin.
pub const LEAST_DIRECTION: f64 = 0.1;
/// And so much above its recent part, since no two intervals have the same mixture.
pub const WOBBLE: f64 = 0.05;

impl Limits {
    /// Whether nothing is limited.
    #[must_use]
    pub fn none(&self) -> bool {
        *self == Self::default()
    }

    /// Whether there are limits, and none can be lower.
    #[must_use]
    pub(super) fn lowest(&self) -> bool {
        let bytes = num::to_u64(LEAST_BYTES);
        let requests = num::to_u64(LEAST_REQUESTS);
        let least = [bytes, bytes, requests, requests];
        let low = |(limit, least): (Option<u64>, u64)| limit.is_none_or(|limit| limit <= least);
        !self.none() && self.parts().into_iter().zip(least).all(low)
    }

    /// Lets at least so many bytes per second be written, and so many read.
    #[must_use]
    pub(super) fn at_least(self, written: f64, read: f64) -> Self {
        let least = |limit: Option<u64>, bytes: f64| {
            limit.map(|limit| limit.max(num::to_u64(bytes.min(MOST_BYTES))))
        };
        Self {
            wbps: least(self.wbps, written),
            rbps: least(self.rbps, read),
            ..self
        }
    }

    /// The same, but for writes, which are not limited.
    #[must_use]
    pub(super) const fn without_writes(self) -> Self {
        Self {
            wbps: None,
            wiops: None,
            ..self
        }
    }

    const fn parts(&self) -> [Option<u64>; 4] {
        [self.rbps, self.wbps, self.riops, self.wiops]
    }

    /// Which part of its limits a flow uses: of the one that binds it most.
    #[must_use]
    pub fn used(&self, flow: &Flow) -> f64 {
        let flows = [flow.rbytes, flow.wbytes, flow.rios, flow.wios];
        self.parts()
            .into_iter()
            .zip(flows)
            .filter_map(|(limit, flow)| Some(flow / num::to_f64(limit?.max(1))))
            .fold(0.0, f64::max)
    }

    /// Whether every limit is within `part` of the other's.
    #[must_use]
    pub fn near(&self, other: &Self, part: f64) -> bool {
        self.parts()
            .into_iter()
            .zip(other.parts())
            .all(|pair| match pair {
                (None, None) => true,
                (Some(a), Some(b)) => num::to_f64(a.abs_diff(b)) <= part * num::to_f64(b),
                _ => false,
            })
    }
}

/// Limits that let a tenant of this mixture spend `credits` per second. What binds a direction is whichever
/// costs more there, its bytes or its requests.
pub(super) fn limits(prices: &Prices, mix: &Flow, credits: f64) -> Limits {
    let (read, write) = prices.cost_by_direction(mix);
    let all = read + write;
    let direction = |cost: f64, (per_byte, per_request): (f64, f64), bytes: f64, requests: f64| {
        let part = if all > 0.0 { cost / all } else { 0.5 };
        let credits = credits * (part.max(LEAST_DIRECTION) + WOBBLE).min(1.0);
        let size = if requests > 0.0 {
            bytes / requests
        } else {
            USUAL
        };
        let price = per_byte * size + per_request;
        let requests = credits / price.max(f64::MIN_POSITIVE);
        if per_request > 2.0 * per_byte * size {
            (
                None,
                Some(num::to_u64(requests.clamp(LEAST_REQUESTS, MOST_REQUESTS))),
            )
        } else {
            let bytes = (requests * size).clamp(LEAST_BYTES, MOST_BYTES);
            (Some(num::to_u64(bytes)), None)
        }
    };
    let (rbps, riops) = direction(read, prices.read(), mix.rbytes, mix.rios);
    let (wbps, wiops) = direction(write, prices.write(), mix.wbytes, mix.wios);
    Limits {
        rbps,
        wbps,
        riops,
        wiops,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_writer_gets_its_credits_in_bytes() {
        let mix = Flow {
            wbytes: 60e6,
            wios: 900.0,
            ..Flow::default()
        };
        let prices = Prices::first(&mix).unwrap();
        let limits = limits(&prices, &mix, 0.25);
        assert_eq!(limits.wbps, Some(15_000_000));
        assert!(limits.rbps.unwrap() < 3_000_000);
        assert_eq!((limits.riops, limits.wiops), (None, None));
        assert!((limits.used(&mix) - 4.0).abs() < 1e-6);
    }

    #[test]
    fn where_requests_cost_more_they_are_limited() {
        let small = Flow {
            rbytes: 2e6,
            rios: 4000.0,
            ..Flow::default()
        };
        let limits = limits(&Prices::first(&small).unwrap(), &small, 0.5);
        assert_eq!((limits.rbps, limits.riops), (None, Some(2000)));
    }

    #[test]
    fn no_limit_is_so_large_that_the_kernel_says_max() {
        let mix = Flow {
            rbytes: 60e6,
            rios: 900.0,
            wbytes: 1e6,
            wios: 20_000.0,
        };
        let mut prices = Prices::first(&mix).unwrap();
        prices.scale(1e-30);
        let limits = limits(&prices, &mix, 1.0).at_least(1e30, 1e30);
        for limit in limits.parts().into_iter().flatten() {
            assert!(limit <= 1_000_000_000_000, "{limits:?}");
        }
        assert!(limits.wiops.is_none_or(|ios| ios < u64::from(u32::MAX)));
    }

    #[test]
    fn what_is_limited_can_be_given_a_least_and_what_is_not_stays_so() {
        let limits = Limits {
            rbps: Some(10),
            wbps: Some(100),
            ..Limits::default()
        };
        let expected = Limits {
            rbps: Some(50),
            ..limits
        };
        assert_eq!(limits.at_least(60.0, 50.0), expected);
        assert!(Limits::default().at_least(60.0, 50.0).none());
    }

    #[test]
    fn near_is_within_the_deadband_and_of_the_same_kind() {
        let of = |wbps| Limits {
            wbps,
            ..Limits::default()
        };
        assert!(of(Some(103)).near(&of(Some(100)), 0.03));
        assert!(!of(Some(104)).near(&of(Some(100)), 0.03));
        assert!(!of(None).near(&of(Some(100)), 0.03));
        assert!(of(None).none() && !of(Some(1)).none());
    }

    #[test]
    fn the_least_limits_are_those_of_who_may_spend_next_to_nothing() {
        let mix = Flow {
            rbytes: 30e6,
            rios: 450.0,
            wbytes: 1e6,
            wios: 20_000.0,
        };
        let prices = Prices::first(&mix).unwrap();
        assert!(limits(&prices, &mix, 1e-6).lowest());
        assert!(!limits(&prices, &mix, 0.05).lowest());
        assert!(!Limits::default().lowest());
    }
}
