//! The kernel's own reclaim.

use super::{HIGH, LOW, Machine, SWAPPINESS};
use crate::machine::tenant::SimTenant;

impl Machine {
    /// Whether the kernel's reclaim passes a tenant over: its usage is within its protection, and its group's likewise.
    fn is_protected(&self, tenant: &SimTenant, min_only: bool) -> bool {
        let usage = tenant.usage();
        let group = tenant.group.map(|group| {
            let members = self.tenants.iter().filter(|t| t.group == Some(group));
            (
                members.map(SimTenant::usage).sum::<u64>(),
                &self.groups[group],
            )
        });
        let low = !min_only
            && usage <= tenant.low
            && group
                .as_ref()
                .is_none_or(|(used, group)| *used <= group.low);
        let min = usage <= tenant.min || group.is_some_and(|(used, group)| used <= group.min);
        usage > 0 && (low || min)
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
                let open: Vec<usize> = (0..self.tenants.len())
                    .filter(|i| !self.is_protected(&self.tenants[*i], min_only))
                    .collect();
                self.reclaim_one(&open)
            });
            if !freed {
                return;
            }
        }
    }

    /// Frees something of these tenants.
    fn reclaim_one(&mut self, open: &[usize]) -> bool {
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
        (slab_first && self.shrink_one(open)) || self.evict_one(open) || self.shrink_one(open)
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

    /// Evicts the file block that was not used for longest; those used once go first.
    fn evict_one(&mut self, open: &[usize]) -> bool {
        let oldest = open
            .iter()
            .filter_map(|i| {
                let oldest = self.tenants[*i].file.oldest()?;
                Some((oldest.again, oldest.at, *i))
            })
            .min();
        oldest.is_some_and(|(_, _, i)| self.tenants[i].evict_file().is_some())
    }
}
