//! The clock of weighted fair queueing.

use crate::Weight;

/// A point in virtual time, in units of `2^32 / weight` a grant. A client keeps the one at which its next request starts,
/// so that [`Queueing::Sfq`](crate::Queueing::Sfq) charges it for the grants that it had. The default, 0, is that of a
/// client that has had none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct VirtualTime(u64);

impl VirtualTime {
    pub(super) const ZERO: Self = Self(0);

    /// The time as a number: the earlier, the smaller.
    pub(super) const fn get(self) -> u64 {
        self.0
    }

    /// So many grants later.
    pub(super) const fn after(self, grants: u64, weight: Weight) -> Self {
        Self(self.0.saturating_add(cost(weight).saturating_mul(grants)))
    }

    /// So many grants earlier.
    pub(super) const fn before(self, grants: u64, weight: Weight) -> Self {
        Self(self.0.saturating_sub(cost(weight).saturating_mul(grants)))
    }
}

/// Virtual time that a grant costs.
const fn cost(weight: Weight) -> u64 {
    (1 << 32) / weight.get()
}
