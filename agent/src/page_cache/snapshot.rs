//! Makes a [`Snapshot`] of the last samples.

use std::collections::HashMap;
use std::path::Path;
use std::time::{Duration, Instant};

use justitia_api::{ReclaimExemption, WeightSource};
use justitia_cgroup_tree::Protection;
use justitia_kernel::cgroup::{CgroupId, Ownership};
use justitia_share::num::{to_f64, to_u64};
use justitia_share::{NodeId, Tree};

use super::memory_sampler::Node;
use crate::config::Config;
use crate::model::{Key, MAX_RECLAIM_CHILDREN, MIN_OBSERVATION, Memory, Snapshot, Tenant};
use crate::monitor::Monitor;

impl Monitor {
    /// The state as last sampled. `reclaim_in_flight` is requested reclaim that has not finished, bytes. `exempt` gives reasons
    /// not to reclaim from a tenant now, beyond those that the monitor knows itself.
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
        bound_swappable(&mut tenants);
        self.sum_up(&mut tenants);
        self.share_orphaned(&mut tenants, now);
        let exempt = exempt(Key::Unmanaged);
        let unmanaged =
            self.unmanaged
                .tenant(&self.memory, &tenants, config.unmanaged.weight, now, exempt);
        let unmanaged = tenants.push(None, unmanaged);
        self.share_orphaned_of(&mut tenants, unmanaged, None, now);
        let memory = self.memory.memory(now);
        let memory = Memory {
            reclaim_in_flight,
            swappiness: if config.cache.swap {
                memory.swappiness
            } else {
                0
            },
            ..memory
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
        let (weight, source) = self.cgroups.weight(node);
        let (idle_for, unused_for) = if leaf {
            self.reuse.idle_and_unused_for(id, memory, now)
        } else {
            (Duration::ZERO, Duration::ZERO)
        };
        let other = memory.other;
        let limit = memory.limits.max.min(memory.high());
        let (swapped_out, swapped_in) = memory.swapped(now);
        let known = self.known_set(id, now);
        let working_set = known.unwrap_or_else(|| memory.working_set(features.multi_gen, now));
        Tenant {
            key,
            weight,
            sums_weights: source == WeightSource::Default
                && !node.is_delegated()
                && !is_of_user(node.cgroup.path()),
            minimum: 0,
            requested_protection: 0,
            cache: (memory.file + memory.slab).saturating_sub(node.excluded_cache),
            own: 0,
            slab: memory.slab,
            orphaned: 0,
            orphaned_in_use: 0,
            orphaned_lately: 0,
            uses_orphaned: 0,
            untargetable: 0,
            other,
            limit: if limit == u64::MAX {
                limit
            } else {
                limit.saturating_sub(other)
            },
            anon: self.swappable(node),
            swapped_out,
            swapped_in,
            unreclaimable: memory.unreclaimable,
            populated: node.populated,
            growing: leaf && memory.growing(now),
            paged_in: memory.paged_in_lately(now),
            idle_for,
            unused_for,
            mapped: memory.mapped,
            unseen: memory.unseen(&working_set, now),
            working_set,
            exempt: features
                .exempts(memory.anon, self.memory.swap_on())
                .or_else(|| too_many.then_some(ReclaimExemption::TooManyChildren))
                .or_else(|| exempt(key)),
        }
    }

    /// The protection that the ancestors of a cgroup leave it, as their operators have set it: the kernel gives no cgroup more. What
    /// this agent has set is not among that.
    fn left_to(&self, node: &Node) -> Protection {
        // The author of each ancestor's `memory.min` costs a system call: ask only where there is something to cap.
        if (node.external_low, node.memory.limits.min) == (0, 0) {
            return Protection::ROOT;
        }
        let parent = |node: &Node| self.cgroups.get(node.parent?);
        std::iter::successors(parent(node), |node| parent(node))
            .fold(Protection::ROOT, |cap, node| {
                cap.at_most(node.set_by(Ownership::Admin, node.memory.limits.min))
            })
    }

    /// The anonymous memory of a tenant that may be swapped out: what is above its minimums, as far as there is swap for it.
    /// [`bound_swappable`] adds what the cgroups above it allow.
    fn swappable(&self, node: &Node) -> u64 {
        let memory = &node.memory;
        let used = memory.file + memory.slab + memory.other;
        let above =
            used.saturating_sub(node.operators_minimum(memory.limits.min, self.left_to(node)));
        let swap = memory.limits.swap_max.saturating_sub(memory.swap);
        let all = if self.features.swappiness {
            memory.swappable
        } else {
            0
        };
        all.min(above).min(swap).min(self.memory.swap_free())
    }

    /// Fills in the values that depend on the children: a tenant's own pages, and its minimum, which depends on its other
    /// memory.
    ///
    /// The counters of an inner node include its descendants', but were read at another moment: it has at least their sum.
    fn sum_up(&self, tenants: &mut Tree<Tenant>) {
        tenants.fold_up_mut(ChildSum::add, |_, tenant, sum| {
            tenant.cache = tenant.cache.max(sum.cache);
            tenant.other = tenant.other.max(sum.other);
            tenant.unreclaimable = tenant.unreclaimable.max(sum.unreclaimable);
            tenant.own = tenant.cache - sum.cache;
            let slab = tenant.slab.max(sum.slab);
            tenant.slab = (slab - sum.slab).min(tenant.own);
            let mut has_unmanaged = sum.has_unmanaged;
            if let Key::Cgroup(id) = tenant.key
                && let Some(node) = self.cgroups.get(id)
            {
                if !node.children.is_empty() {
                    tenant.orphaned = tenant.own;
                }
                (tenant.minimum, tenant.requested_protection) =
                    node.minimums(node.memory.limits.min, self.left_to(node), tenant.other);
                has_unmanaged |= node.has_unmanaged_children();
            }
            if has_unmanaged {
                tenant.exempt = tenant.exempt.or(Some(ReclaimExemption::UnmanagedChild));
            }
            ChildSum {
                cache: tenant.cache,
                slab,
                other: tenant.other,
                unreclaimable: tenant.unreclaimable,
                has_unmanaged,
            }
        });
    }

    /// Finds the orphaned pages of inner nodes that are in use.
    fn share_orphaned(&self, tenants: &mut Tree<Tenant>, now: Instant) {
        for id in tenants.ids() {
            if let Key::Cgroup(cgroup) = tenants[id].key {
                self.share_orphaned_of(tenants, id, Some(cgroup), now);
            }
        }
    }

    /// Finds the orphaned pages of tenant `of` that are in use: by the children of `cgroup` (by top-level cgroups without one),
    /// and by recently removed children that may come back.
    fn share_orphaned_of(
        &self,
        tenants: &mut Tree<Tenant>,
        of: NodeId,
        cgroup: Option<CgroupId>,
        now: Instant,
    ) {
        let orphaned = tenants[of].orphaned;
        if orphaned == 0 {
            return;
        }
        let mut left = orphaned;
        let children = tenants.children(cgroup.map(|_| of));
        let leaves: Vec<NodeId> = children
            .filter(|child| *child != of && tenants.is_leaf(*child))
            .collect();
        for child in leaves {
            let uses = self.uncovered(&tenants[child], now).min(left);
            tenants[child].uses_orphaned = uses;
            left -= uses;
        }
        let lately = self.cgroups.departed(cgroup, now);
        let in_use = (orphaned - left).max(lately.used.min(orphaned));
        tenants[of].orphaned_in_use = in_use;
        tenants[of].orphaned_lately = lately.held.min(orphaned).max(in_use);
    }

    /// Cache beyond its own that a tenant uses, bytes: the part of its working set that its reads find elsewhere. Of one that has not
    /// read for minutes that is not known.
    fn uncovered(&self, tenant: &Tenant, now: Instant) -> u64 {
        let Key::Cgroup(id) = tenant.key else {
            return 0;
        };
        if tenant.unused_for >= MIN_OBSERVATION {
            return 0;
        }
        let stats = self.app_io.stats(id, now);
        let hits = stats.and_then(|stats| stats.recent.hit_ratio());
        let found = to_f64(tenant.working_set.bytes) * hits.unwrap_or(1.0);
        to_u64(found).saturating_sub(tenant.own)
    }
}

/// Applies a cgroup's minimum and its limit of swap to all cgroups below it. Without swap space for a tenant, its
/// `memory.reclaim` takes files whatever the swappiness.
fn bound_swappable(tenants: &mut Tree<Tenant>) {
    for id in tenants.ids() {
        if let Some(parent) = tenants.parent(id) {
            let most = tenants[parent].anon;
            tenants[id].anon = tenants[id].anon.min(most);
        }
    }
}

/// The sums of a tenant's children, bytes.
#[derive(Clone, Copy, Default)]
struct ChildSum {
    cache: u64,
    slab: u64,
    other: u64,
    unreclaimable: u64,
    /// Whether any cgroup below is no tenant.
    has_unmanaged: bool,
}

/// Whether a cgroup is a user's slice. logind makes a cgroup in it for each session, so the user chooses their number
/// (systemd-logind.service(8)).
fn is_of_user(path: &Path) -> bool {
    let name = path.strip_prefix("user.slice").ok().and_then(Path::to_str);
    let uid = name.and_then(|name| name.strip_prefix("user-")?.strip_suffix(".slice"));
    uid.is_some_and(|uid| !uid.is_empty() && uid.bytes().all(|byte| byte.is_ascii_digit()))
}

impl ChildSum {
    fn add(&mut self, child: &Self) {
        self.cache = self.cache.saturating_add(child.cache);
        self.slab = self.slab.saturating_add(child.slab);
        self.other = self.other.saturating_add(child.other);
        self.unreclaimable = self.unreclaimable.saturating_add(child.unreclaimable);
        self.has_unmanaged |= child.has_unmanaged;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page_cache::fixture;

    #[test]
    fn a_limit_of_swap_holds_for_what_is_below() {
        let tenant = |id, anon| Tenant {
            anon,
            ..fixture::tenant(Key::Cgroup(CgroupId(id)), 100, 0)
        };
        // The second has a child with more, and that has a child; the last is alone.
        let mut tenants = fixture::tree([
            (None, tenant(1, 0)),
            (None, tenant(2, 50)),
            (Some(0), tenant(3, 70)),
            (Some(1), tenant(4, 70)),
            (Some(3), tenant(5, 60)),
            (None, tenant(6, 80)),
        ]);
        bound_swappable(&mut tenants);
        let anon: Vec<u64> = tenants.values().map(|tenant| tenant.anon).collect();
        assert_eq!(anon, [0, 50, 0, 50, 50, 80]);
    }

    #[test]
    fn a_users_slice_is_one_whatever_the_user_opens() {
        for (path, expected) in [
            ("user.slice/user-1000.slice", true),
            ("user.slice/user-1000.slice/session-1.scope", false),
            ("user.slice/user-.slice", false),
            ("user.slice", false),
            ("a/user.slice/user-1000.slice", false),
        ] {
            assert_eq!(is_of_user(Path::new(path)), expected, "{path}");
        }
    }
}
