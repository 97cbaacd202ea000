//! io.cost, which the agent enables on a disk without another controller, while tenants contend for it.
//!
//! Its rate is fixed: the kernel's own search for it (vrate) swings between half of the disk's capacity and more than it
//! (docs/results/device.md). Instead the model, the cost of a byte and of a request, follows the disk ([`Rate`]).

use justitia_api::units::bytes;
use justitia_kernel::cgroup::{Cgroup, CgroupId};
use justitia_kernel::io::DevId;
use justitia_kernel::knob::Knob;
use justitia_share::PAGE_SIZE;
use justitia_share::num::{to_f64, to_u64};

use super::knobs::{Moved, give_back};
use crate::device::capacity::{LEAST_BYTES, Rate};
use crate::device::disk_sampler::Interval;
use crate::device::ours::{ours_to_write, still_stands, told};
use crate::device::prices::{Costs, Prices};
use crate::device::weights::Contention;
use crate::knobs::KnobStore;

/// A change of the rate by less than this part is not made: each write of a model waits until the disk's queue is empty.
const DEADBAND: f64 = 0.002;
/// io.cost's period is twice this latency, microseconds: several requests of a slow disk. With a shorter one it hardly divides.
const LATENCY: u32 = 25_000;

/// io.cost of one disk, ours.
#[derive(Debug)]
pub(super) struct OwnIoCost {
    device: DevId,
    rate: Rate,
    /// The current rate; `None` while io.cost is not enabled.
    standing: Option<Prices>,
}

impl OwnIoCost {
    pub(super) fn new(device: DevId) -> Self {
        Self {
            device,
            rate: Rate::default(),
            standing: None,
        }
    }

    /// Whether it is enabled.
    pub(super) const fn stands(&self) -> bool {
        self.standing.is_some()
    }

    /// Handles an interval.
    pub(super) fn step(&mut self, contention: Contention, seen: &Interval, costs: &Costs) {
        self.rate.step(contention, seen, costs);
    }

    /// See [`Rate::is_used`].
    pub(super) fn is_used(&self) -> bool {
        self.rate.is_used()
    }

    /// Enables io.cost, changes its rate, or restores both lines.
    pub(super) fn apply(&mut self, root: &Cgroup, store: &mut KnobStore) -> Vec<Moved> {
        let Some(rate) = self.rate.handed_out() else {
            return self.release(root, store, OVER);
        };
        let near = |now: f64, then: f64| now == then || (now / then - 1.0).abs() < DEADBAND;
        let stands = |standing: Prices| {
            near(rate.bytes, standing.bytes) && near(rate.requests, standing.requests)
        };
        if self.standing.is_some_and(stands) {
            return Vec::new();
        }
        let lines = [
            (Knob::IoCostModel(self.device), model(self.device, &rate)),
            (Knob::IoCostQos(self.device), quality(self.device)),
        ];
        let free =
            |(knob, _): &(Knob, String)| ours_to_write(store, root, *knob, &knob.default_value());
        if !lines.iter().all(free) {
            return self.release(root, store, THEIRS);
        }
        let mut moved = Vec::new();
        for (knob, line) in lines {
            if store.applied(root.id(), knob) == Some(line.as_str()) {
                continue;
            }
            let written = store.hold(root, knob, &line);
            if !told(root, knob, written, store) {
                moved.extend(self.release(root, store, THEIRS));
                return moved;
            }
            moved.push(Moved {
                id: root.id(),
                knob,
                to: Some(line),
                why: why(&rate),
            });
        }
        self.standing = Some(rate);
        moved
    }

    /// Checks whether both lines still have our values; if not, restores the remaining one.
    pub(super) fn audit(&mut self, root: &Cgroup, store: &mut KnobStore) -> Vec<Moved> {
        let stand = knobs(self.device)
            .into_iter()
            .all(|knob| still_stands(store, root.id(), knob));
        if self.stands() && !stand {
            return self.release(root, store, THEIRS);
        }
        Vec::new()
    }

    /// Restores both lines.
    pub(super) fn release(
        &mut self,
        root: &Cgroup,
        store: &mut KnobStore,
        why: &str,
    ) -> Vec<Moved> {
        self.standing = None;
        let ours = knobs(self.device).map(|knob| (root.id(), knob));
        let held = |(id, knob): &(CgroupId, Knob)| store.applied(*id, *knob).is_some();
        let held = ours.into_iter().filter(held).collect();
        give_back(store, held, why)
    }
}

/// The lines of the root, in the order of their restore: without the first the second has no effect.
const fn knobs(device: DevId) -> [Knob; 2] {
    [Knob::IoCostQos(device), Knob::IoCostModel(device)]
}

/// The bounds of the rate, bytes per second. A model of 0 would cost nothing. Some kernels overflow to 0 near the largest
/// number.
const BYTES: std::ops::RangeInclusive<f64> = LEAST_BYTES..=1e12;
/// The same of requests per second.
const REQUESTS: std::ops::RangeInclusive<f64> = 1.0..=1e9;
const OVER: &str = "nobody contends for the disk any more";
const THEIRS: &str = "another writer has set io.cost of the disk";

/// The line as the kernel prints it, so that ours is recognized.
fn quality(device: DevId) -> String {
    format!(
        "{device} enable=1 ctrl=user rpct=0.00 rlat={LATENCY} wpct=0.00 wlat={LATENCY} min=100.00 max=100.00"
    )
}

/// The kernel takes the rate of requests of one page: its own cost of a request is that less the cost of a page.
fn model(device: DevId, rate: &Prices) -> String {
    let page = to_f64(PAGE_SIZE);
    let requests = 1.0 / (1.0 / rate.requests + page / rate.bytes);
    let within = |range: std::ops::RangeInclusive<f64>, value: f64| {
        to_u64(value.clamp(*range.start(), *range.end()))
    };
    let (bytes, requests) = (within(BYTES, rate.bytes), within(REQUESTS, requests));
    format!(
        "{device} ctrl=user model=linear rbps={bytes} rseqiops={requests} rrandiops={requests} wbps={bytes} wseqiops={requests} wrandiops={requests}"
    )
}

fn why(rate: &Prices) -> String {
    let requests = match rate.requests.is_finite() {
        true => format!(", or {:.0} requests/s", rate.requests),
        false => String::new(),
    };
    format!(
        "tenants contend for the disk, which nothing divides by weight; io.cost hands out {}/s of it{requests}, hardly less than it can do",
        bytes(to_u64(rate.bytes))
    )
}

#[cfg(test)]
mod tests;
