//! What would follow if a tenant had another weight, or a cache of a certain size.

use std::fmt::Write;

use justitia_api::{EstimateBasis, Status, TenantStatus};
use justitia_share::{Demand, Tree, Weight, entitlements};
use serde::Serialize;

use crate::table::table;
use justitia_api::units::{bytes, percent, rate};

/// One that misses no more than this part of its accesses has in its cache what it uses.
const FULL: f64 = 0.02;

/// What is changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Its weight.
    Weight(Weight),
    /// The size of its cache, bytes: it gets this much, whatever its weight.
    Size(u64),
}

/// A leaf before and after. Amounts in bytes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Forecast {
    /// Its path.
    pub path: String,
    /// Its name for people.
    #[serde(skip)]
    pub name: String,
    /// The page cache that it has when every tenant has taken up its entitlement: now, and after the change.
    pub cache: [u64; 2],
    /// The part of its accesses that miss, 0 to 1; `None` where its accesses are not seen.
    pub misses: Option<[f64; 2]>,
    /// Its accesses a second, lately, in the blocks of its curve; `None` where they are not seen.
    pub accesses: Option<f64>,
    /// Bytes a second that it reads from the disk, as whole blocks.
    pub reads: Option<[f64; 2]>,
}

/// What each leaf is entitled to now and after the change. Of leaves that it changes nothing for only the tenant itself
/// is told. `block` is the size of a curve's blocks, bytes: [`BLOCK`](crate::curve::BLOCK) for the page cache.
#[must_use]
pub fn whatif(status: &Status, index: usize, change: Change, block: f64) -> Vec<Forecast> {
    let before = divide(status, None);
    let after = divide(status, Some((index, change)));
    let leaves = status.tenants.iter().enumerate().filter(|(_, t)| t.leaf);
    leaves
        .map(|(i, tenant)| {
            // It holds no more than it takes in, or has now, whatever it is entitled to.
            let most = wants(tenant).max(tenant.usage);
            let mut cache = [before[i], after[i]].map(|part| part.min(most));
            if let (true, Change::Size(size)) = (i == index, change) {
                // What no tenant demands is divided, too: of that it gets nothing.
                cache[1] = after[i].min(size);
            }
            (i, forecast(tenant, cache, block))
        })
        .filter(|(i, Forecast { cache, .. })| {
            *i == index || cache[0].abs_diff(cache[1]) > (cache[0] / 100).max(1 << 20)
        })
        .map(|(_, forecast)| forecast)
        .collect()
}

fn forecast(tenant: &TenantStatus, cache: [u64; 2], block: f64) -> Forecast {
    let misses = tenant
        .curve
        .as_ref()
        .map(|curve| cache.map(|size| curve.miss_ratio(size)));
    let accesses = tenant.curve.as_ref().map(|curve| curve.accesses);
    let each = accesses.unwrap_or_default() * block;
    Forecast {
        path: tenant.path.clone(),
        name: tenant.display_name(),
        cache,
        misses,
        accesses,
        reads: misses.map(|misses| misses.map(|misses| misses * each)),
    }
}

/// The entitlements by the function and the demands of the agent's planner, with at most one thing changed. It differs in
/// one thing: a tenant demands no more than its curve shows of use to it.
fn divide(status: &Status, change: Option<(usize, Change)>) -> Vec<u64> {
    let mut tree = Tree::new();
    for (i, tenant) in status.tenants.iter().enumerate() {
        let parent = tenant.parent.and_then(|parent| tree.node(parent));
        let changed = change.filter(|(index, _)| *index == i).map(|(_, c)| c);
        let demand =
            changed.map_or_else(|| demand(tenant), |change| changed_demand(tenant, change));
        tree.push(parent, demand);
    }
    entitlements(&tree, status.memory.cache_divisible)
}

fn demand(tenant: &TenantStatus) -> Demand {
    Demand {
        weight: Weight::try_from(tenant.weight).unwrap_or_default(),
        sums_weights: tenant.sums_weights,
        minimum: tenant.minimum.max(tenant.unreclaimable),
        in_use: if tenant.leaf { tenant.in_use() } else { 0 },
        working_set: if tenant.leaf { tenant.working_set } else { 0 },
        requested_protection: tenant.requested_protection,
        total: wants(tenant),
    }
}

/// What it takes in at most.
fn wants(tenant: &TenantStatus) -> u64 {
    tenant.demand.unwrap_or(u64::MAX).min(reaches(tenant))
}

/// How far it fills its cache: one that has next to no misses at some size takes in no more.
fn reaches(tenant: &TenantStatus) -> u64 {
    let curve = tenant.curve.as_ref();
    match curve.and_then(|curve| curve.points.last()) {
        Some((size, misses)) if *misses <= FULL => *size,
        _ => u64::MAX,
    }
}

fn changed_demand(tenant: &TenantStatus, change: Change) -> Demand {
    let demand = demand(tenant);
    match change {
        Change::Weight(weight) => Demand { weight, ..demand },
        Change::Size(size) => Demand {
            minimum: size,
            in_use: size,
            working_set: size,
            total: size,
            ..demand
        },
    }
}

/// The forecasts as a table. `index` is the tenant that is changed.
#[must_use]
pub fn text(status: &Status, index: usize, change: Change, forecasts: &[Forecast]) -> String {
    let Some(tenant) = status.tenants.get(index) else {
        return String::new();
    };
    let name = tenant.display_name();
    let mut out = match change {
        Change::Weight(weight) => format!(
            "{name} with weight {} instead of {}:\n\n",
            weight.get(),
            tenant.weight
        ),
        Change::Size(size) => format!("{name} with {} of page cache:\n\n", bytes(size)),
    };
    let columns = "TENANT|>CACHE|>THEN|>MISSES|>THEN|>DISK READS|>THEN";
    out += &table(columns, forecasts.iter().map(row));
    let unknown = forecasts.iter().any(|f| f.misses.is_none());
    let _ = writeln!(
        out,
        "\nCACHE is what each is entitled to and takes up, MISSES the part of its accesses that its cache has not, as it \
         accesses lately."
    );
    if unknown {
        let _ = writeln!(
            out,
            "- : its accesses are not seen, or it has had none lately."
        );
    }
    if tenant.evidence == EstimateBasis::Accesses
        && tenant.observed_for < status.policy.min_observation
    {
        let _ = writeln!(
            out,
            "{name} has been observed for {:.0} s: the longer, the surer.",
            tenant.observed_for
        );
    }
    out
}

/// A row of the table.
fn row(forecast: &Forecast) -> Vec<String> {
    let none = || ["-".to_owned(), "-".to_owned()];
    let misses = forecast
        .misses
        .map_or_else(none, |m| m.map(|m| format!("{} %", percent(m))));
    let reads = forecast
        .reads
        .map_or_else(none, |r| r.map(|r| format!("{}/s", rate(r))));
    let pairs = [forecast.cache.map(bytes), misses, reads];
    std::iter::once(forecast.name.clone())
        .chain(pairs.into_iter().flatten())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::curve::BLOCK;
    use justitia_api::{CurveStatus, MemoryStatus};

    const MIB: u64 = 1 << 20;

    /// A working set of `size` MiB. Each MiB is used as often as any other.
    fn hot(path: &str, weight: u64, size: u64) -> TenantStatus {
        TenantStatus {
            path: path.into(),
            leaf: true,
            weight,
            working_set: size * MIB,
            usage: 200 * MIB,
            evidence: EstimateBasis::Accesses,
            observed_for: 300.0,
            curve: Some(CurveStatus {
                accesses: 100.0,
                points: vec![(0, 1.0), (size * MIB, 0.0)],
            }),
            ..TenantStatus::default()
        }
    }

    fn status(tenants: Vec<TenantStatus>) -> Status {
        Status {
            memory: MemoryStatus {
                cache_divisible: 600 * MIB,
                ..MemoryStatus::default()
            },
            tenants,
            ..Status::default()
        }
    }

    #[test]
    fn more_weight_is_more_cache_and_fewer_misses_at_the_cost_of_the_others() {
        let status = status(vec![hot("a", 100, 400), hot("b", 100, 400)]);
        let weight = Change::Weight(Weight::try_from(200).unwrap());
        let found = whatif(&status, 0, weight, BLOCK);
        assert_eq!(found[0].cache, [300 * MIB, 400 * MIB]);
        assert_eq!(found[0].misses, Some([0.25, 0.0]));
        assert_eq!(found[1].cache, [300 * MIB, 200 * MIB]);
        assert_eq!(found[1].misses, Some([0.25, 0.5]));
        let text = text(&status, 0, weight, &found);
        assert!(text.contains("a with weight 200 instead of 100"), "{text}");
        assert!(text.contains("25.0 %  0.0 %"), "{text}");
    }

    #[test]
    fn a_size_is_had_whatever_the_weight() {
        let status = status(vec![hot("a", 100, 400), hot("b", 10_000, 400)]);
        let found = whatif(&status, 0, Change::Size(300 * MIB), BLOCK);
        assert_eq!(found[0].cache[1], 300 * MIB);
        assert_eq!(found[1].cache[1], 300 * MIB);
    }

    #[test]
    fn a_size_is_exact_where_memory_is_left_over() {
        let mut a = hot("a", 100, 100);
        a.usage = 0;
        let status = status(vec![a, hot("b", 100, 100)]);
        for (size, had, misses) in [(0, 0, 1.0), (50, 50, 0.5), (1000, 600, 0.0)] {
            let found = whatif(&status, 0, Change::Size(size * MIB), BLOCK);
            assert_eq!(found[0].cache, [100 * MIB, had * MIB], "{size}");
            assert_eq!(found[0].misses, Some([0.0, misses]), "{size}");
        }
        let found = whatif(&status, 0, Change::Size(0), BLOCK);
        assert_eq!(found.len(), 1, "the other has all it uses: {found:?}");
    }

    #[test]
    fn protection_requested_in_a_delegated_subtree_counts_among_its_children() {
        let inner = TenantStatus {
            path: "a".into(),
            weight: 100,
            ..TenantStatus::default()
        };
        let below = |path: &str, requested: u64| TenantStatus {
            parent: Some(0),
            requested_protection: requested * MIB,
            ..hot(path, 100, 600)
        };
        let status = status(vec![inner, below("a/x", 400), below("a/y", 0)]);
        let weight = Change::Weight(Weight::try_from(900).unwrap());
        let found = whatif(&status, 1, weight, BLOCK);
        assert_eq!(found[0].cache, [400 * MIB, 540 * MIB]);
        assert_eq!(found[1].cache, [200 * MIB, 60 * MIB]);
    }

    #[test]
    fn what_its_set_leaves_of_its_part_goes_to_the_other() {
        let mut a = hot("a", 100, 400);
        a.working_set = 450 * MIB;
        let status = status(vec![a, hot("b", 100, 400)]);
        let found = whatif(
            &status,
            0,
            Change::Weight(Weight::try_from(900).unwrap()),
            BLOCK,
        );
        assert_eq!(found[0].cache[1], 400 * MIB);
        assert_eq!(found[1].cache[1], 200 * MIB);
    }

    #[test]
    fn one_that_takes_in_no_more_does_not_grow_by_weight() {
        let mut quiet = hot("a", 100, 100);
        quiet.demand = Some(100 * MIB);
        let status = status(vec![quiet, hot("b", 100, 500)]);
        let found = whatif(
            &status,
            0,
            Change::Weight(Weight::try_from(1000).unwrap()),
            BLOCK,
        );
        assert_eq!(
            found.len(),
            1,
            "it changes nothing for the other: {found:?}"
        );
        assert_eq!(found[0].cache[0], found[0].cache[1]);
        let blind = status_without_curve();
        let found = whatif(&blind, 0, Change::Size(10 * MIB), BLOCK);
        assert_eq!(found[0].misses, None);
        assert!(text(&blind, 0, Change::Size(10 * MIB), &found).contains("not seen"));
    }

    #[test]
    fn tables_have_the_names_of_status_and_json_has_paths() {
        let mut container = hot("system.slice/docker-1.scope", 100, 400);
        container.name = "web".into();
        let status = status(vec![container, hot("-", 100, 400)]);
        let weight = Change::Weight(Weight::try_from(300).unwrap());
        let found = whatif(&status, 1, weight, BLOCK);
        let text = text(&status, 1, weight, &found);
        for line in ["(unmanaged) with weight 300", "\nweb ", "\n(unmanaged) "] {
            assert!(text.contains(line), "{line:?} is not in\n{text}");
        }
        let json = serde_json::to_value(&found).unwrap();
        assert_eq!(json[1]["path"], "-");
        assert!(json[1]["name"].is_null());
    }

    fn status_without_curve() -> Status {
        let mut blind = hot("a", 100, 400);
        blind.curve = None;
        status(vec![blind])
    }
}
