//! From the last samples to a [`Snapshot`].

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::cgroup_tree::Node;
use super::schedule::Monitor;
use crate::config::Config;
use justitia_api::ReclaimExemption;
use justitia_kernel::cgroup::CgroupId;
use justitia_share::{NodeId, Tree};

use crate::model::{Key, MAX_RECLAIM_CHILDREN, Memory, Snapshot, Tenant};

impl Monitor {
    /// The state as last sampled. `reclaim_in_flight` is reclaim that was requested and has not finished, bytes. `exempt`
    /// tells which tenants must not be reclaimed from now, beyond what the monitor knows itself.
    pub fn snapshot(
        &mut self,
        config: &Config,
        now: Instant,
        reclaim_in_flight: u64,
        exempt: impl Fn(Key) -> Option<ReclaimExemption>,
    ) -> Snapshot {
        let order = self.cgroups.breadth_first();
        let mut ids: HashMap<CgroupId, NodeId> = HashMap::with_capacity(order.len());
        let mut tenants = Tree::with_capacity(order.len() + 1);
        for id in order {
            let Some(node) = self.cgroups.get(id) else {
                continue;
            };
            let parent = node.parent.and_then(|parent| ids.get(&parent).copied());
            ids.insert(id, tenants.push(parent, self.tenant(node, now, &exempt)));
        }
        self.sum_up(&mut tenants);
        let exempt = exempt(Key::Unmanaged);
        let unmanaged =
            self.unmanaged
                .tenant(&self.memory, &tenants, config.unmanaged.weight, now, exempt);
        tenants.push(None, unmanaged);
        let memory = Memory {
            reclaim_in_flight,
            ..self.memory.memory()
        };
        Snapshot { memory, tenants }
    }

    fn tenant(
        &self,
        node: &Node,
        now: Instant,
        exempt: impl Fn(Key) -> Option<ReclaimExemption>,
    ) -> Tenant {
        let (id, memory) = (node.cgroup.id(), &node.memory);
        let key = Key::Cgroup(id);
        let leaf = node.children.is_empty();
        let too_many = node.children.len() > MAX_RECLAIM_CHILDREN;
        let features = &self.features;
        Tenant {
            key,
            weight: self.cgroups.weight(node).0,
            minimum: 0,
            requested_protection: 0,
            file: memory.file.saturating_sub(node.excluded_file),
            own: 0,
            orphaned: 0,
            untargetable: 0,
            other: memory.other,
            unreclaimable: memory.unreclaimable,
            populated: node.populated,
            growing: leaf && memory.growing(now),
            idle_for: if leaf {
                let idle_for = memory.idle_for(now);
                self.reuse
                    .idle_for(id)
                    .map_or(idle_for, |unused| unused.min(idle_for))
            } else {
                Duration::ZERO
            },
            mapped: memory.mapped,
            working_set: self
                .reuse
                .working_set(id)
                .unwrap_or_else(|| memory.working_set(features.multi_gen, now)),
            exempt: features
                .exempts(memory.anon, self.memory.swap_on())
                .or_else(|| too_many.then_some(ReclaimExemption::TooManyChildren))
                .or_else(|| exempt(key)),
        }
    }

    /// Fills in what depends on the children: a tenant's own pages, and its minimum, which depends on its other memory.
    ///
    /// The counters of an inner node include its descendants', but were not read at the same moment: it has at least what
    /// they have.
    fn sum_up(&self, tenants: &mut Tree<Tenant>) {
        tenants.fold_up_mut(ChildSum::add, |_, tenant, sum| {
            tenant.file = tenant.file.max(sum.file);
            tenant.other = tenant.other.max(sum.other);
            tenant.unreclaimable = tenant.unreclaimable.max(sum.unreclaimable);
            tenant.own = tenant.file - sum.file;
            let mut has_unmanaged = sum.has_unmanaged;
            if let Key::Cgroup(id) = tenant.key
                && let Some(node) = self.cgroups.get(id)
            {
                if !node.children.is_empty() {
                    tenant.orphaned = tenant.own;
                }
                (tenant.minimum, tenant.requested_protection) = node.minimums(tenant.other);
                has_unmanaged |= node.has_unmanaged_children();
            }
            if has_unmanaged {
                tenant.exempt = tenant.exempt.or(Some(ReclaimExemption::UnmanagedChild));
            }
            ChildSum {
                file: tenant.file,
                other: tenant.other,
                unreclaimable: tenant.unreclaimable,
                has_unmanaged,
            }
        });
    }
}

/// What a tenant's children have together, bytes.
#[derive(Clone, Copy, Default)]
struct ChildSum {
    file: u64,
    other: u64,
    unreclaimable: u64,
    /// Whether any cgroup below is no tenant.
    has_unmanaged: bool,
}

impl ChildSum {
    fn add(&mut self, child: &Self) {
        self.file = self.file.saturating_add(child.file);
        self.other = self.other.saturating_add(child.other);
        self.unreclaimable = self.unreclaimable.saturating_add(child.unreclaimable);
        self.has_unmanaged |= child.has_unmanaged;
    }
}
