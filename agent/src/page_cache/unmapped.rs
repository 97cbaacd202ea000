//! The cap of unmapped page cache: "Page/Slab Cache Control in a Virtualized Environment" (Linux Symposium 2010), 5.1.
//!
//! A VM's host caches the same blocks as the VM. With a cap (`[unmapped] max_ratio`, the paper's `min_unmapped_ratio`) the VM
//! keeps little unmapped page cache, and the host keeps it. If the cap limits the page cache, only the cap is divided by weight
//! and use: mapped pages and slab stay with the tenant that holds them.

use justitia_share::{Demand, Tree};

use crate::model::{Key, Snapshot, Tenant};

/// A cap of unmapped page cache that is smaller than memory would allow. Bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnmappedCap {
    /// The cap.
    pub cap: u64,
    /// The unmapped page cache.
    pub held: u64,
    /// The part of it that must be reclaimed now.
    pub over: u64,
    /// The bytes divided by weight and use.
    pub room: u64,
    /// The mapped pages and slab that each tenant keeps before that, its descendants' included.
    pub kept: Vec<u64>,
    /// The sum of `kept` at the top level.
    pub kept_in_all: u64,
}

impl UnmappedCap {
    /// A cap below which `room` bytes are divided. `None` if it allows at least the `fits` bytes for which there is memory.
    pub(super) fn of(snapshot: &Snapshot, cap: u64, room: u64, fits: u64) -> Option<Self> {
        let (memory, tenants) = (&snapshot.memory, &snapshot.tenants);
        // Only the unmanaged tenant has no count of mapped pages in the kernel.
        let leaves = || tenants.iter().filter(|(id, _)| tenants.is_leaf(*id));
        let of_cgroups: u64 = leaves().map(|(_, tenant)| mapped(tenant)).sum();
        let all: u64 = tenants.values().map(file).sum();
        let others = all
            .saturating_sub(memory.unmapped)
            .saturating_sub(of_cgroups);
        let kept = tenants.fold_up(
            |sum: &mut u64, below| *sum = sum.saturating_add(*below),
            |id, tenant, below| match (tenant.key, tenants.is_leaf(id)) {
                (_, false) => below,
                (Key::Unmanaged, _) => others.min(file(tenant)).saturating_add(tenant.slab),
                (Key::Cgroup(_), _) => mapped(tenant).saturating_add(tenant.slab),
            },
        );
        let top_level = tenants.children(None).map(|id| kept[id.index()]);
        let kept_in_all = top_level.fold(0, u64::saturating_add);
        (kept_in_all.saturating_add(room) < fits).then_some(Self {
            cap,
            held: memory.unmapped,
            over: memory.unmapped.saturating_sub(room),
            room,
            kept,
            kept_in_all,
        })
    }

    /// The tenants' demands beyond what they keep.
    pub(super) fn beyond(&self, tenants: &Tree<Tenant>, demands: &Tree<Demand>) -> Tree<Demand> {
        demands.map(|id, demand| {
            let (tenant, kept) = (&tenants[id], self.kept[id.index()]);
            let used = mapped(tenant).min(kept);
            Demand {
                minimum: demand.minimum.saturating_sub(kept),
                in_use: demand.in_use.saturating_sub(used),
                working_set: demand.working_set.saturating_sub(used),
                requested_protection: demand.requested_protection.saturating_sub(kept),
                total: match demand.total {
                    u64::MAX => u64::MAX,
                    total => total.saturating_sub(kept),
                },
                ..*demand
            }
        })
    }
}

/// A tenant's own file pages.
const fn file(tenant: &Tenant) -> u64 {
    tenant.own.saturating_sub(tenant.slab)
}

/// The file pages that a cgroup's processes have mapped, an upper bound: the kernel includes mapped shared memory.
fn mapped(tenant: &Tenant) -> u64 {
    tenant.mapped.min(file(tenant))
}
