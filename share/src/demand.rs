//! What a tenant demands of a resource that is divided.

use crate::Weight;

/// What a tenant demands. Amounts are in the caller's unit: bytes, credits, blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Demand {
    /// Weight among the siblings.
    pub weight: Weight,
    /// Nobody set a weight of this inner node: it competes with the sum of the weights of those children that demand
    /// anything, so that where no weight is set on the way leaves compete as leaves, whatever the shape of the tree.
    pub sums_weights: bool,
    /// What it gets before anything is divided by weight (for an inner node, at least the sum of its children's minimums).
    pub minimum: u64,
    /// Requested protection: counts as a minimum among the siblings, after all their minimums, and nowhere else. It is never
    /// carried up to the parent. It is for those who may decide inside the parent, but not how much the parent gets: as
    /// the kernel's `memory.low`, whose effect in a subtree is bounded by the subtree's own
    /// (Documentation/admin-guide/cgroup-v2.rst, "memory.low").
    pub requested_protection: u64,
    /// The part of its working set that is in use now. It is served, by weight, before what others keep for later (for an
    /// inner node, the sum of its children's, whatever is given here).
    pub in_use: u64,
    /// Its working set. It is served, by weight, before any demand beyond that (for an inner node, the
    /// sum of its children's, whatever is given here).
    pub working_set: u64,
    /// All that it can use (for an inner node, a cap on the sum of its children's).
    pub total: u64,
}

impl Demand {
    /// A tenant of this weight that takes whatever it can get: Justitia's tenants (section III-B1).
    #[must_use]
    pub const fn unlimited(weight: Weight) -> Self {
        Self {
            weight,
            sums_weights: false,
            minimum: 0,
            requested_protection: 0,
            in_use: 0,
            working_set: 0,
            total: u64::MAX,
        }
    }
}
