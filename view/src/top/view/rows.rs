//! Which lines the tree has, and in which order.

use std::collections::HashSet;

use justitia_api::{Status, TenantStatus};

use super::sort::Sort;

/// A line of the tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// The tenant's position in the status.
    pub index: usize,
    /// How deep in the tree.
    pub depth: usize,
    /// Whether it has children that are not shown.
    pub folded: bool,
}

/// What of the tree is shown, and how.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrangement<'a> {
    pub(super) sort: Sort,
    /// A part of the path of every tenant that is shown.
    pub(super) filter: &'a str,
    /// Tenants whose children are not shown, by their ids.
    pub(super) folded: &'a HashSet<u64>,
}

impl Arrangement<'_> {
    /// The lines: siblings sorted, what is folded or filtered left out.
    pub(super) fn rows(&self, status: &Status) -> Vec<Row> {
        let tenants = &status.tenants;
        let mut children: Vec<Vec<usize>> = vec![Vec::new(); tenants.len()];
        let mut top = Vec::new();
        for (i, tenant) in tenants.iter().enumerate() {
            match tenant.parent.and_then(|p| children.get_mut(p)) {
                Some(siblings) => siblings.push(i),
                None => top.push(i),
            }
        }
        let wanted = self.wanted(tenants);
        self.order(&mut top, tenants);
        let mut stack: Vec<(usize, usize)> = top.into_iter().rev().map(|i| (i, 0)).collect();
        let mut rows = Vec::with_capacity(tenants.len());
        while let Some((index, depth)) = stack.pop() {
            if wanted.as_ref().is_some_and(|w| !w[index]) {
                continue;
            }
            let group = &mut children[index];
            let folded = self.folded.contains(&tenants[index].id) && self.filter.is_empty();
            rows.push(Row {
                index,
                depth,
                folded: folded && !group.is_empty(),
            });
            if !folded {
                self.order(group, tenants);
                stack.extend(group.iter().rev().map(|i| (*i, depth + 1)));
            }
        }
        rows
    }

    /// Sorts siblings.
    fn order(&self, group: &mut [usize], tenants: &[TenantStatus]) {
        if self.sort == Sort::Tree {
            // The kernel lists them in no order. What is outside comes last.
            group.sort_by_key(|i| (tenants[*i].is_unmanaged(), tenants[*i].path.as_str()));
        } else {
            group.sort_by_key(|i| std::cmp::Reverse(self.sort.key(&tenants[*i])));
        }
    }

    /// Which tenants the filter lets through, their ancestors included; `None` for all.
    fn wanted(&self, tenants: &[TenantStatus]) -> Option<Vec<bool>> {
        if self.filter.is_empty() {
            return None;
        }
        let part = self.filter.to_lowercase();
        let matches = |t: &TenantStatus| t.path.to_lowercase().contains(&part);
        let mut wanted: Vec<bool> = tenants.iter().map(matches).collect();
        for i in (0..wanted.len()).rev() {
            if let (true, Some(parent)) = (wanted[i], tenants[i].parent) {
                wanted[parent] = true;
            }
        }
        Some(wanted)
    }
}
