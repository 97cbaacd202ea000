//! An inner node's figures: the sums of its leaves'.

use justitia_api::{AppStatus, TenantStatus};
use justitia_share::Tree;

/// What a subtree has.
#[derive(Clone, Copy, Debug, Default)]
struct Subtotal {
    usage: u64,
    protected: u64,
    working_set: u64,
    working_set_unknown: bool,
    reclaimed: u64,
    unreclaimable: u64,
    other: u64,
    refaults: u64,
    app: Option<AppStatus>,
    /// Bytes per second that hit the cache, of `reads`.
    hits: f64,
    /// Bytes per second read by tenants whose hit ratio is known.
    reads: f64,
}

impl Subtotal {
    fn of(tenant: &TenantStatus) -> Self {
        let read_rate = tenant.app.map_or(0.0, |app| app.read_rate);
        let hit_ratio = tenant.app.and_then(|app| app.hit_ratio);
        Self {
            usage: tenant.usage,
            protected: tenant.protected,
            working_set: tenant.working_set,
            working_set_unknown: tenant.working_set_unknown,
            reclaimed: tenant.reclaimed,
            unreclaimable: tenant.unreclaimable,
            other: tenant.other,
            refaults: tenant.refaults,
            app: tenant.app,
            hits: hit_ratio.map_or(0.0, |ratio| ratio * read_rate),
            reads: hit_ratio.map_or(0.0, |_| read_rate),
        }
    }

    fn add(&mut self, more: &Self) {
        self.usage += more.usage;
        self.protected += more.protected;
        self.working_set += more.working_set;
        self.working_set_unknown |= more.working_set_unknown;
        self.reclaimed += more.reclaimed;
        self.unreclaimable += more.unreclaimable;
        self.other += more.other;
        self.refaults += more.refaults;
        self.hits += more.hits;
        self.reads += more.reads;
        match (&mut self.app, &more.app) {
            (Some(sum), Some(part)) => add_app(sum, part),
            (sum @ None, part) => *sum = *part,
            (Some(_), None) => {}
        }
    }
}

fn add_app(sum: &mut AppStatus, part: &AppStatus) {
    sum.read_bytes += part.read_bytes;
    sum.write_bytes += part.write_bytes;
    sum.reads += part.reads;
    sum.writes += part.writes;
    sum.cache_read_bytes += part.cache_read_bytes;
    sum.cache_miss_bytes += part.cache_miss_bytes;
    sum.misses += part.misses;
    sum.io_throttled += part.io_throttled;
    sum.dirty_throttled += part.dirty_throttled;
    sum.read_rate += part.read_rate;
    sum.write_rate += part.write_rate;
    sum.miss_rate += part.miss_rate;
}

/// Adds to every inner node what its descendants have. Its hit ratio is theirs, weighted by what they read.
pub(super) fn add_up(tenants: &mut Tree<TenantStatus>) {
    tenants.fold_up_mut(Subtotal::add, |_, tenant, below: Subtotal| {
        let mut sum = Subtotal::of(tenant);
        // What applications below get counts only where the node's own are seen.
        let seen = tenant.app.is_some();
        sum.add(&below);
        if tenant.leaf {
            return sum;
        }
        tenant.usage = sum.usage;
        tenant.protected = sum.protected;
        tenant.working_set = sum.working_set;
        tenant.working_set_unknown = sum.working_set_unknown;
        tenant.reclaimed = sum.reclaimed;
        tenant.unreclaimable = sum.unreclaimable;
        tenant.other = sum.other;
        tenant.refaults = sum.refaults;
        sum.app = sum.app.filter(|_| seen).map(|app| AppStatus {
            io_stalled: tenant.app.and_then(|own| own.io_stalled),
            hit_ratio: if sum.reads > 0.0 {
                Some(sum.hits / sum.reads)
            } else {
                tenant.app.and_then(|own| own.hit_ratio)
            },
            ..app
        });
        tenant.app = sum.app;
        sum
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leaf(usage: u64, read_rate: f64, hit_ratio: Option<f64>) -> TenantStatus {
        TenantStatus {
            leaf: true,
            usage,
            protected: usage / 2,
            app: Some(AppStatus {
                read_rate,
                hit_ratio,
                ..AppStatus::default()
            }),
            ..TenantStatus::default()
        }
    }

    #[test]
    fn an_inner_node_has_the_sums_of_its_leaves_and_their_weighted_hit_ratio() {
        let mut tree = Tree::new();
        let inner = TenantStatus {
            usage: 5,
            app: Some(AppStatus::default()),
            ..TenantStatus::default()
        };
        let top = tree.push(None, inner.clone());
        let middle = tree.push(Some(top), inner);
        tree.push(Some(middle), leaf(10, 300.0, Some(1.0)));
        tree.push(Some(middle), leaf(20, 100.0, Some(0.0)));
        tree.push(Some(top), leaf(40, 50.0, None));
        add_up(&mut tree);
        let app = tree[top].app.unwrap();
        assert_eq!((tree[top].usage, tree[middle].usage), (80, 35));
        assert_eq!((tree[top].protected, tree[middle].protected), (35, 15));
        assert_eq!((app.read_rate, app.hit_ratio), (450.0, Some(0.75)));
    }
}
