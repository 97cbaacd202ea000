//! `memory.low` in proportion to the entitlements. The kernel's own reclaim then respects them between two ticks of the
//! agent (Justitia, section III-B3).

use justitia_api::ProtectionReason;

use super::entitlements::Entitlements;
use crate::model::{Key, Snapshot};

/// Set `memory.low` of one cgroup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LowIntent {
    /// Which tenant.
    pub key: Key,
    /// The new value in bytes, a multiple of the page size.
    pub low: u64,
    /// The facts behind it.
    pub reason: ProtectionReason,
}

/// A `memory.low` that the agent may write, bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Low {
    /// Its value now.
    pub now: u64,
    /// What it must not be below: what its operator has set. 0 if nobody has.
    pub least: u64,
}

/// The least change that is written, bytes.
pub(crate) const MIN_DEADBAND: u64 = 1 << 20;
/// The deadband as a fraction of the value: one in so many.
pub(crate) const DEADBAND: u64 = 32;

/// The intents for all tenants whose `memory.low` is further from its goal than the deadband, parents first, since a
/// child's protection only counts under its parent's. `lows` are the knobs, indexed like the tenants; `None` for one that
/// is not the agent's to write.
///
/// The kernel caps a child's protection by every ancestor's (Documentation/admin-guide/cgroup-v2.rst, "Memory Interface
/// Files"), so an inner node gets the sum of its children's, or what its operator has set, if that is more.
#[must_use]
pub fn plan_protection(
    snapshot: &Snapshot,
    entitlements: &Entitlements,
    lows: &[Option<Low>],
) -> Vec<LowIntent> {
    let tenants = &snapshot.tenants;
    let goals = tenants.fold_up(
        |sum: &mut ProtectionReason, child| {
            sum.protected += child.protected;
            sum.other += child.other;
        },
        |id, tenant, mut sum| {
            if !tenants.is_leaf(id) {
                // The kernel spreads what no child claims of it over what is charged to the node itself (cgroup-v2.rst,
                // memory_recursiveprot).
                sum.protected += entitlements.orphaned[id.index()];
                return sum;
            }
            ProtectionReason::of_leaf(entitlements.protected[id.index()], tenant.other)
        },
    );
    let intents = tenants
        .values()
        .zip(lows)
        .zip(goals)
        .filter_map(|((tenant, knob), reason)| {
            let Low { now, least } = (*knob)?;
            let low = reason.memory_low().max(least);
            let deadband = (low / DEADBAND).max(MIN_DEADBAND);
            let moved = low.abs_diff(now) > deadband || (low == 0 && now != 0);
            (moved && tenant.key != Key::Unmanaged).then_some(LowIntent {
                key: tenant.key,
                low,
                reason,
            })
        });
    intents.collect()
}
