//! What I/O costs on a device: the currency of credits, learnt from saturated intervals.

use crate::num;

/// I/O per second, or, as [`Prices`], credits per unit of it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Flow {
    /// Bytes read.
    pub rbytes: f64,
    /// Bytes written.
    pub wbytes: f64,
    /// Read requests.
    pub rios: f64,
    /// Write requests.
    pub wios: f64,
}

impl Flow {
    fn parts(&self) -> [f64; 4] {
        [self.rbytes, self.wbytes, self.rios, self.wios]
    }

    const fn of([rbytes, wbytes, rios, wios]: [f64; 4]) -> Self {
        Self {
            rbytes,
            wbytes,
            rios,
            wios,
        }
    }

    /// Both together.
    #[must_use]
    pub fn plus(&self, other: &Self) -> Self {
        let (a, b) = (self.parts(), other.parts());
        Self::of(std::array::from_fn(|k| a[k] + b[k]))
    }

    /// So many times as much.
    #[must_use]
    pub fn times(&self, factor: f64) -> Self {
        Self::of(self.parts().map(|part| part * factor))
    }

    /// Moved by `part` (0 to 1) of the way to `other`.
    #[must_use]
    pub fn towards(&self, other: &Self, part: f64) -> Self {
        let (a, b) = (self.parts(), other.parts());
        Self::of(std::array::from_fn(|k| a[k] + (b[k] - a[k]) * part))
    }

    /// All bytes per second.
    #[must_use]
    pub fn bytes(&self) -> f64 {
        self.rbytes + self.wbytes
    }

    /// Whether there is any.
    #[must_use]
    pub fn is_some(&self) -> bool {
        self.rios + self.wios > 0.0 || self.bytes() > 0.0
    }
}

/// Request size, in bytes, of a direction that was not seen yet.
pub(super) const USUAL: f64 = 65_536.0;
/// Before anything is known, a request costs as much as so many bytes.
const REQUEST_AS_BYTES: f64 = 4096.0;

/// What a byte and a request, read and written, cost: in credits, of which the device makes one a second.
///
/// A device that is limited by bytes has prices on bytes, one that is limited by requests on requests; one
/// that needs time for both, on both. A mixture of traffic tells them apart; as long as the traffic is
/// uniform, any split says the same.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Prices(Flow);

impl Prices {
    /// First prices: this flow saturated the device, so it costs one credit a second. `None` if there was no
    /// flow.
    #[must_use]
    pub fn first(flow: &Flow) -> Option<Self> {
        let guess = Flow::of([1.0, 1.0, REQUEST_AS_BYTES, REQUEST_AS_BYTES]);
        let cost = Self(guess).cost(flow);
        (cost > 0.0).then(|| Self(Flow::of(guess.parts().map(|price| price / cost))))
    }

    /// The credits per second that a flow costs; 1 is the whole device.
    #[must_use]
    pub fn cost(&self, flow: &Flow) -> f64 {
        let (prices, flow) = (self.0.parts(), flow.parts());
        (0..4).map(|k| prices[k] * flow[k]).sum()
    }

    /// The credits that writing so many bytes costs, in requests of the size that writes of `mix` have.
    #[must_use]
    pub(super) fn cost_to_write(&self, bytes: u64, mix: &Flow) -> f64 {
        let per_byte = if mix.wbytes > 0.0 {
            self.cost_by_direction(mix).1 / mix.wbytes
        } else {
            self.0.wbytes + self.0.wios / USUAL
        };
        num::to_f64(bytes) * per_byte
    }

    /// What of it reads cost, and what writes.
    #[must_use]
    pub fn cost_by_direction(&self, flow: &Flow) -> (f64, f64) {
        let (p, f) = (self.0, flow);
        (
            p.rbytes * f.rbytes + p.rios * f.rios,
            p.wbytes * f.wbytes + p.wios * f.wios,
        )
    }

    /// The price of a byte and of a request, read.
    #[must_use]
    pub const fn read(&self) -> (f64, f64) {
        (self.0.rbytes, self.0.rios)
    }

    /// The price of a byte and of a request, written.
    #[must_use]
    pub const fn write(&self) -> (f64, f64) {
        (self.0.wbytes, self.0.wios)
    }

    /// This flow saturated the device: moves the prices towards its costing one credit a second, by `rate`
    /// (0 to 1) of the way.
    pub fn learn(&mut self, flow: &Flow, rate: f64) {
        self.shift(flow, -rate * self.cost(flow).ln());
    }

    /// Moves the price of what there is most of in this flow by the factor whose logarithm is `step`, and each other in
    /// proportion to its part of the cost (a multiplicative projection: prices stay positive, and those that the flow says
    /// nothing about stay).
    pub(super) fn shift(&mut self, flow: &Flow, step: f64) {
        let (prices, flow) = (self.0.parts(), flow.parts());
        let most = (0..4).map(|k| prices[k] * flow[k]).fold(0.0, f64::max);
        if most <= 0.0 || !step.is_finite() {
            return;
        }
        self.0 = Flow::of(std::array::from_fn(|k| {
            prices[k] * (step * prices[k] * flow[k] / most).exp()
        }));
    }

    /// Everything becomes dearer by `factor`, or cheaper if that is below 1.
    pub fn scale(&mut self, factor: f64) {
        self.0 = Flow::of(self.0.parts().map(|price| price * factor));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flow(megabytes: f64, requests: f64) -> Flow {
        Flow {
            wbytes: megabytes * 1e6,
            wios: requests,
            ..Flow::default()
        }
    }

    #[test]
    fn what_is_to_be_written_costs_as_much_as_what_was() {
        let mix = flow(60.0, 900.0);
        let prices = Prices::first(&mix).unwrap();
        assert!((prices.cost_to_write(60_000_000, &mix) - 1.0).abs() < 1e-9);
        assert!((prices.cost_to_write(30_000_000, &mix) - 0.5).abs() < 1e-9);
        // Of one that has not written yet, in requests of the usual size.
        let unseen = prices.cost_to_write(60_000_000, &Flow::default());
        assert!((0.9..1.1).contains(&unseen), "{unseen}");
    }

    #[test]
    fn a_saturating_flow_costs_the_device() {
        let first = Prices::first(&flow(60.0, 900.0)).unwrap();
        assert!((first.cost(&flow(60.0, 900.0)) - 1.0).abs() < 1e-9);
        assert!((first.cost(&flow(30.0, 450.0)) - 0.5).abs() < 1e-9);
        assert_eq!(Prices::first(&Flow::default()), None);
    }

    #[test]
    fn mixtures_tell_bytes_from_requests() {
        // 100 MB/s at most, and 10,000 requests/s at most, time needed for both.
        let saturating = |size: f64| {
            let requests = 1.0 / (size / 100e6 + 1.0 / 10_000.0);
            flow(requests * size / 1e6, requests)
        };
        let mut prices = Prices::first(&saturating(65536.0)).unwrap();
        for round in 0..400 {
            let size = [4096.0, 65536.0, 1048576.0][round % 3];
            prices.learn(&saturating(size), 0.5);
        }
        for size in [4096.0, 16384.0, 131072.0, 1048576.0] {
            let cost = prices.cost(&saturating(size));
            assert!((0.9..1.1).contains(&cost), "{size}: {cost}");
        }
    }

    #[test]
    fn a_device_that_slows_down_becomes_dear() {
        let mut prices = Prices::first(&flow(60.0, 900.0)).unwrap();
        for _ in 0..6 {
            prices.learn(&flow(30.0, 450.0), 0.5);
        }
        let cost = prices.cost(&flow(30.0, 450.0));
        assert!((0.97..1.03).contains(&cost), "{cost}");
    }
}
