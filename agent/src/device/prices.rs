//! The cost of bytes and requests on a disk: the linear model of io.cost (Documentation/admin-guide/cgroup-v2.rst,
//! `io.cost.model`), learnt from its throughput while it was always busy.
//!
//! A tenant with small requests moves few bytes and may use most of a disk. Divided by bytes alone it would get nearly all of
//! it. No counter shows the time of one request: several are in flight at once. But a busy second is always spent, whatever its
//! mixture. So bytes and requests get the costs that fit the mixtures of the last minute best (least squares).

use super::disk_sampler::{BUSY, Interval};

/// The busy seconds of a mixture: in a shorter time a disk's throughput varies by itself.
const WINDOW: f64 = 2.0;
/// Mixtures are forgotten over this many busy seconds.
const FORGOTTEN: f64 = 60.0;
/// Nothing is learnt before the disk has been always busy for about this many seconds of contention. A throttled disk that
/// rests in between does more bytes afterwards, with about as many requests: then requests look like its limit.
const FULL: f64 = 10.0;
/// Requests cost nothing until mixtures differ by more than chance: by the root of this, about three per cent.
const CHANCE: f64 = 0.001;
/// The least cost of a byte, as a part of its cost if requests cost nothing.
const LEAST: f64 = 0.02;

/// The capacity of a disk per second: this many bytes if requests cost nothing, this many requests if bytes cost nothing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Prices {
    /// Bytes.
    pub bytes: f64,
    /// Requests; infinite if they cost nothing.
    pub requests: f64,
}

impl Prices {
    /// The cost of these bytes and requests, relative to the same bytes in requests that cost nothing.
    #[must_use]
    pub fn times(&self, bytes: f64, requests: f64) -> f64 {
        let dearer = (requests / self.requests) / (bytes / self.bytes);
        if dearer.is_finite() {
            1.0 + dearer
        } else {
            1.0
        }
    }

    /// The cost in seconds of the disk.
    #[must_use]
    pub fn cost(&self, bytes: f64, requests: f64) -> f64 {
        bytes / self.bytes + requests / self.requests
    }

    /// This part of the capacity.
    #[must_use]
    pub fn part(&self, part: f64) -> Self {
        Self {
            bytes: part * self.bytes,
            requests: part * self.requests,
        }
    }
}

/// A disk's sums over a time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Sums {
    pub(super) seconds: f64,
    pub(super) bytes: f64,
    requests: f64,
    /// The used part of io.cost's budget, seconds.
    used: f64,
}

impl Sums {
    pub(super) fn add(&mut self, seen: &Interval) {
        self.seconds += seen.seconds;
        self.bytes += seen.bytes * seen.seconds;
        self.requests += seen.requests * seen.seconds;
        self.used += seen.used.unwrap_or(0.0) * seen.seconds;
    }

    /// Forgets half.
    pub(super) fn halve(&mut self) {
        *self = Self {
            seconds: self.seconds / 2.0,
            bytes: self.bytes / 2.0,
            requests: self.requests / 2.0,
            used: self.used / 2.0,
        };
    }

    /// Bytes and requests, per second.
    pub(super) fn throughput(&self) -> [f64; 2] {
        [self.bytes, self.requests].map(|sum| sum / self.seconds)
    }

    /// The used part of io.cost's budget.
    pub(super) fn used(&self) -> f64 {
        self.used / self.seconds
    }
}

/// The learnt costs of one disk: sums over its busy seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Costs {
    /// The current window.
    window: Sums,
    seconds: f64,
    bytes: f64,
    requests: f64,
    /// The sums of the products of both, per second.
    squares: [f64; 3],
    /// How much of the last [`FULL`] was sampled, and how much of that the disk was busy, seconds.
    lately: [f64; 2],
    /// Whether it was always busy for long enough to learn from.
    was_full: bool,
    /// The best fit at the end of the last window.
    prices: Option<Prices>,
}

impl Costs {
    /// Handles an interval. Without contention all is forgotten: later tenants may have other work on a disk whose speed has
    /// changed, and together that looks like a price. The use of io.cost of `ours` says nothing about the disk.
    pub fn step(&mut self, contended: bool, seen: &Interval, ours: bool) {
        let busy = if ours { seen.busy } else { seen.occupied() };
        if !contended {
            *self = Self::default();
            return;
        }
        let kept = (-seen.seconds / FULL).exp();
        let [looked, full] = self.lately.map(|seconds| kept * seconds);
        self.lately = [looked + seen.seconds, full + busy * seen.seconds];
        self.was_full |= self.is_full();
        if busy >= BUSY && seen.bytes > 0.0 {
            self.learn(seen);
        }
    }

    /// Whether the disk has recently been always busy. Unknown before half of [`FULL`].
    fn is_full(&self) -> bool {
        let [looked, full] = self.lately;
        looked >= FULL / 2.0 && full >= BUSY * looked
    }

    fn learn(&mut self, seen: &Interval) {
        self.window.add(seen);
        let Sums {
            seconds,
            bytes,
            requests,
            ..
        } = self.window;
        if seconds < WINDOW {
            return;
        }
        self.window = Sums::default();
        self.take_in(seconds, bytes / seconds, requests / seconds);
        if self.was_full {
            self.prices = self.fit();
        }
    }

    fn take_in(&mut self, seconds: f64, bytes: f64, requests: f64) {
        let kept = (-seconds / FORGOTTEN).exp();
        let add = |sum: &mut f64, one: f64| *sum = kept * *sum + one * seconds;
        add(&mut self.seconds, 1.0);
        add(&mut self.bytes, bytes);
        add(&mut self.requests, requests);
        let squares = [bytes * bytes, bytes * requests, requests * requests];
        for (sum, one) in self.squares.iter_mut().zip(squares) {
            add(sum, one);
        }
    }

    /// See [`Prices::times`]; 1 before anything is known.
    #[must_use]
    pub fn times(&self, bytes: f64, requests: f64) -> f64 {
        let times = |prices: Prices| prices.times(bytes, requests);
        self.prices.map_or(1.0, times)
    }

    /// The best fit of the costs; `None` before there is one.
    #[must_use]
    pub const fn prices(&self) -> Option<Prices> {
        self.prices
    }

    fn fit(&self) -> Option<Prices> {
        let of = |sum: f64| sum / self.seconds;
        let (bytes, requests) = (of(self.bytes), of(self.requests));
        if !(bytes > 0.0 && requests > 0.0) {
            return None;
        }
        let [bb, br, rr] = self.squares.map(of);
        let (bb, br) = (bb / (bytes * bytes), br / (bytes * requests));
        let rr = rr / (requests * requests) + CHANCE;
        // The parts of a second for the mean numbers of requests and of bytes.
        let of_requests = (bb - br) / (bb * rr - br * br);
        let of_requests = of_requests.min((1.0 - LEAST * bb) / br).max(0.0);
        let of_bytes = (1.0 - of_requests * br) / bb;
        Some(Prices {
            bytes: bytes / of_bytes,
            requests: requests / of_requests,
        })
    }
}

#[cfg(test)]
mod tests;
