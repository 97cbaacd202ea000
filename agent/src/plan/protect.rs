//! Standing protection: `memory.low` in proportion to the entitlements, so that the kernel's own reclaim
//! respects them between two of our decisions.

use justitia_share::PAGE_SIZE;

use justitia_api::ProtectionReason;

use super::entitlements::Entitlements;
use crate::model::{Key, Snapshot};

/// Set `memory.low` of one cgroup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LowIntent {
    /// Whose.
    pub key: Key,
    /// The new value in bytes, a multiple of the page size.
    pub low: u64,
    /// The facts behind it.
    pub reason: ProtectionReason,
}

/// What `memory.low` should be, for every tenant whose knob is further from it than the deadband (1/32 of
/// the value, at least 1 MiB). `standing` is what stands there now, indexed like the tenants; `None` for a
/// knob that is not ours to write.
///
/// A child's protection is capped by every ancestor's (Documentation/admin-guide/cgroup-v2.rst, "Memory
/// Interface Files"), so an inner node gets the sum of its children's.
#[must_use]
pub fn plan_protection(
    snapshot: &Snapshot,
    entitlements: &Entitlements,
    standing: &[Option<u64>],
) -> Vec<LowIntent> {
    let tenants = &snapshot.tenants;
    let mut wanted: Vec<ProtectionReason> = vec![
        ProtectionReason {
            protected: 0,
            other: 0
        };
        tenants.len()
    ];
    for i in (0..tenants.len()).rev() {
        if tenants[i].leaf {
            // A leaf without protected pages needs no protection of the rest either.
            let protected = entitlements.protected[i];
            let other = if protected > 0 { tenants[i].other } else { 0 };
            wanted[i] = ProtectionReason { protected, other };
        }
        if let Some(parent) = tenants[i].parent {
            wanted[parent].protected += wanted[i].protected;
            wanted[parent].other += wanted[i].other;
        }
    }
    let intents = tenants
        .iter()
        .zip(standing)
        .zip(wanted)
        .filter_map(|((tenant, now), reason)| {
            let now = (*now)?;
            // The kernel rounds the knob down to whole pages: the value that is read back has to be the one written.
            let low = (reason.protected + reason.other) / PAGE_SIZE * PAGE_SIZE;
            let deadband = (low / 32).max(1 << 20);
            let moved = low.abs_diff(now) > deadband || (low == 0 && now != 0);
            (moved && tenant.key != Key::Unmanaged).then_some(LowIntent {
                key: tenant.key,
                low,
                reason,
            })
        });
    // Parents first: a child's protection only counts under its parent's.
    intents.collect()
}
