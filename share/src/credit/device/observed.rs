//! What the loop of a device is told, and what it answers.

use super::super::limit::Limits;
use super::super::price::Flow;
use crate::NodeId;

/// An interval, as the device saw it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Interval {
    /// Its length, seconds.
    pub seconds: f64,
    /// The part of it in which the device had requests, 0 to 1.
    pub busy: f64,
    /// Requests that it completed over those that it was given: below 1 its queue has grown, above it has
    /// shrunk. What a queue takes in is not yet done.
    pub kept_up: f64,
    /// How long its queue is: the requests in it at the end of the interval over those that it completes a
    /// second, seconds.
    pub delay: f64,
}

/// A tenant's interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Observed {
    /// The same tenant has the same number in every interval.
    pub id: u64,
    /// Its node in the tree.
    pub node: NodeId,
    /// What it transferred to and from the device, per second.
    pub flow: Flow,
    /// The part of the interval in which any of its tasks waited for I/O, 0 to 1.
    pub stalled: f64,
    /// What its applications read and wrote, bytes per second, cached or not; `None` where unknown.
    pub application: Option<f64>,
    /// What they wrote, of that; `None` where unknown.
    pub written: Option<f64>,
    /// What the tenant wrote to devices, this and others, bytes per second.
    pub reached: f64,
    /// Its dirty pages and those under writeback, bytes. From [`BUFFERED`] on, what holds it may be their room,
    /// not its credits.
    pub dirty: u64,
    /// Of those, the ones under writeback, bytes: what others can wait for.
    pub writeback: u64,
    /// Whether it can be limited.
    pub limitable: bool,
}

/// What a tenant may spend in the next interval, and why.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Allowance {
    /// Who.
    pub id: u64,
    /// What it may spend, as a part of the device's time.
    pub part: f64,
    /// What it is entitled to by weight if all want all they can get.
    pub share: f64,
    /// What it is expected to want; `None` if all that it can get.
    pub demand: Option<f64>,
    /// The factor by which its part was corrected for what its applications get.
    pub correction: f64,
    /// Credits carried over, as a part of the device's second.
    pub residual: f64,
    /// Whether its limits let it move more than its credits, since others wait behind its dirty pages, since they are many
    /// after a step, or since memory serves much of what it writes: room decides, then.
    pub lifted: bool,
    /// Its limits.
    pub limits: Limits,
}

impl Allowance {
    /// What its limits are made of: its part with what is carried over, and no less than half of it.
    #[must_use]
    pub const fn spends(&self) -> f64 {
        spends(self.part, self.residual)
    }

    /// Whether it uses up what it may spend: such tenants contend.
    #[must_use]
    pub const fn held(&self) -> bool {
        self.demand.is_none()
    }
}

/// See [`Allowance::spends`].
pub(super) const fn spends(part: f64, residual: f64) -> f64 {
    (part + residual).max(part / 2.0)
}

/// So many bytes of dirty pages are something to speak of.
pub const BUFFERED: u64 = 1 << 20;
