//! The kernel's own reclaim.

use super::{Group, HIGH, LOW, Machine, SWAPPINESS};
use crate::machine::tenant::SimTenant;

impl Machine {
    /// The part of a tenant's memory that is above its effective `memory.min` and, unless that is passed over,
    /// `memory.low`: by as much less is it scanned (`apply_proportional_protection`).
    fn open_part(&self, tenant: &SimTenant, min_only: bool) -> f64 {
        let min = self.effective(tenant, |t| t.min, |group| group.min);
        let low = match min_only {
            true => 0,
            false => self.effective(tenant, |t| t.low, |group| group.low),
        };
        let usage = tenant.usage();
        usage.saturating_sub(min.max(low)) as f64 / usage.max(1) as f64
    }

    /// As much of a tenant's setting as its group's lets have effect, and its part of what no member claims of that
    /// (`effective_protection`, with `memory_recursiveprot`).
    fn effective(
        &self,
        tenant: &SimTenant,
        of: fn(&SimTenant) -> u64,
        of_group: fn(&Group) -> u64,
    ) -> u64 {
        let Some(group) = tenant.group else {
            return of(tenant);
        };
        let claims = |tenant: &SimTenant| of(tenant).min(tenant.usage());
        let members = || self.tenants.iter().filter(|t| t.group == Some(group));
        let used: u64 = members().map(SimTenant::usage).sum();
        let claimed: u64 = members().map(claims).sum();
        let (own, all) = (claims(tenant), of_group(&self.groups[group]));
        if claimed > all {
            return all * own / claimed;
        }
        own + (all - claimed) * (tenant.usage() - own) / (used - claimed).max(1)
    }

    /// The kernel's own reclaim, below its watermark: it chooses between file pages, slab and anonymous memory by their
    /// sizes and costs (`get_scan_count`, `shrink_slab`), and takes what was least recently used of tenants above their
    /// protection if there are any.
    pub(super) fn kernel(&mut self) {
        if self.free() >= self.size / LOW {
            return;
        }
        while self.free() < self.size / HIGH {
            let freed = [false, true].into_iter().any(|min_only| {
                let open: Vec<(usize, f64)> = (0..self.tenants.len())
                    .filter_map(|i| {
                        let part = self.open_part(&self.tenants[i], min_only);
                        (part > 0.0).then_some((i, part))
                    })
                    .collect();
                self.reclaim_one(&open)
            });
            if !freed {
                return;
            }
        }
    }

    /// Frees something of these tenants, each with the part of it that is open to reclaim.
    fn reclaim_one(&mut self, parts: &[(usize, f64)]) -> bool {
        let open: Vec<usize> = parts.iter().map(|(i, _)| *i).collect();
        let open = open.as_slice();
        let sum = |pages: fn(&SimTenant) -> u64| -> f64 {
            open.iter().map(|i| pages(&self.tenants[*i])).sum::<u64>() as f64
        };
        let (file, active) = (sum(|t| t.file.pages()), sum(|t| t.file.active_pages()));
        let slab = sum(|t| t.slab.pages());
        let trims_cache = file - active > active;
        let anon = if self.swap_free() > 0 && !trims_cache {
            let costs = self.file_cost + self.anon_cost + 1.0;
            let relative = (costs + self.file_cost) / (costs + self.anon_cost);
            let swappiness = f64::from(SWAPPINESS);
            sum(|t| t.anon.pages()) * swappiness / (200.0 - swappiness) * relative
        } else {
            0.0
        };
        let mut at = self.chance.unit() * (file + slab + anon);
        at -= anon;
        if at < 0.0 && self.swap_one(open) {
            return true;
        }
        at -= slab;
        let slab_first = at < 0.0;
        (slab_first && self.shrink_one(open)) || self.evict_one(parts) || self.shrink_one(open)
    }

    /// Swaps out the anonymous memory that was not used for longest, unless it was used just now.
    fn swap_one(&mut self, open: &[usize]) -> bool {
        let referenced = self.clocks.front().copied().unwrap_or(0);
        let found = open
            .iter()
            .filter_map(|i| Some((self.tenants[*i].anon.oldest()?.at, *i)))
            .min();
        let Some((_, i)) = found.filter(|(at, _)| *at < referenced) else {
            return false;
        };
        self.anon_cost += 16.0;
        self.tenants[i].swap_out().is_some()
    }

    /// Frees the slab that was not used for longest.
    fn shrink_one(&mut self, open: &[usize]) -> bool {
        let oldest = open
            .iter()
            .filter_map(|i| Some((self.tenants[*i].slab.oldest()?.at, *i)))
            .min();
        oldest.is_some_and(|(_, i)| (0..16).any(|_| self.tenants[i].evict_slab().is_some()))
    }

    /// Evicts the file block that was not used for longest; those used once go first. A tenant of which less is open to
    /// reclaim than of another is passed over more often.
    fn evict_one(&mut self, parts: &[(usize, f64)]) -> bool {
        let mut oldest: Vec<(bool, u64, usize, f64)> = parts
            .iter()
            .filter_map(|(i, part)| {
                let oldest = self.tenants[*i].file.oldest()?;
                Some((oldest.again, oldest.at, *i, *part))
            })
            .collect();
        let used_once = oldest.iter().any(|(again, ..)| !again);
        oldest.retain(|(again, ..)| *again != used_once);
        oldest.sort_by_key(|(_, at, ..)| *at);
        let most = oldest.iter().fold(0.0_f64, |most, one| most.max(one.3));
        let found = oldest
            .iter()
            .find(|(.., part)| *part >= most || self.chance.unit() * most < *part);
        let found = found.map(|(_, _, i, _)| *i);
        found.is_some_and(|i| self.tenants[i].evict_file().is_some())
    }
}
