//! The pools of a running daemon as the tenants that `view` draws and divides: VMs, and their pools below them.

use super::stats::{count, each};
use anyhow::{anyhow, bail};
use justitia_api::escape::plain;
use justitia_api::{CurveStatus, MemoryStatus, Status, TenantStatus};
use justitia_cache::StoreKind;
use justitia_view::explain::{find, nearest};
use serde_json::Value;

/// A block of the cache, bytes.
pub(super) const BLOCK: f64 = 4096.0;

/// Fewer gets in a second than this, and a pool takes in nothing.
const IDLE: f64 = 0.1;

/// The pools by their sizes in one store. What a pool holds in the other store stays, so its curve begins there.
pub(super) fn pools(stats: &Value, store: StoreKind) -> Status {
    let mut tenants = Vec::new();
    for vm in each(&stats["cache"], "vms") {
        let parent = tenants.len();
        let name = vm["name"].as_str().unwrap_or("?");
        tenants.push(TenantStatus {
            path: name.to_owned(),
            weight: count(vm, "weight"),
            ..TenantStatus::default()
        });
        let pools = each(vm, "pools").map(|of| pool(name, of, store));
        tenants.extend(pools.map(|pool| TenantStatus {
            parent: Some(parent),
            ..pool
        }));
    }
    let stores = each(&stats["cache"], "stores");
    let named = stores.filter(|found| found["store"].as_str() == Some(&store.to_string()));
    Status {
        memory: MemoryStatus {
            cache_divisible: named.map(|store| count(store, "capacity_bytes")).sum(),
            ..MemoryStatus::default()
        },
        tenants,
        ..Status::default()
    }
}

fn pool(vm: &str, pool: &Value, store: StoreKind) -> TenantStatus {
    let [memory, ssd] = ["memory", "ssd"].map(|name| count(pool, &format!("{name}_bytes")));
    let (usage, elsewhere) = match store {
        StoreKind::Memory => (memory, ssd),
        StoreKind::Ssd => (ssd, memory),
    };
    let curve = serde_json::from_value::<Option<CurveStatus>>(pool["curve"].clone());
    let curve = curve.ok().flatten().map(|curve| curve.beyond(elsewhere));
    let active = curve.as_ref().is_some_and(|curve| curve.accesses >= IDLE);
    let weight = count(pool, &format!("{store}_weight"));
    TenantStatus {
        path: format!("{vm}/{}", pool["name"].as_str().unwrap_or("?")),
        leaf: true,
        weight,
        usage,
        entitlement: count(pool, &format!("{store}_entitlement_bytes")),
        // It takes in nothing where it has no weight, and nothing while it is not used.
        demand: match weight {
            0 => Some(0),
            _ => (!active).then_some(usage),
        },
        working_set_unknown: true,
        curve,
        ..TenantStatus::default()
    }
}

/// Which pool is meant: `VM/POOL`, or the pool's name where one VM alone has such a pool.
pub(super) fn named(status: &Status, name: &str) -> anyhow::Result<usize> {
    let leaves = status.tenants.iter().filter(|tenant| tenant.leaf).cloned();
    let pools = Status {
        tenants: leaves.collect(),
        ..Status::default()
    };
    let found = match find(&pools, name) {
        Ok(found) => found,
        Err(paths) if paths.is_empty() => bail!(
            "expected a pool as VM/POOL, found {name:?}; the nearest are\n  {}",
            nearest(&pools, name).join("\n  ")
        ),
        Err(paths) => bail!(
            "expected one pool, found that {name:?} could be any of\n  {}",
            paths.join("\n  ")
        ),
    };
    let path = pools.tenants.get(found).map(|pool| &pool.path);
    let at = |tenant: &TenantStatus| tenant.leaf && Some(&tenant.path) == path;
    let at = status.tenants.iter().position(at);
    at.ok_or_else(|| anyhow!("the pool {name:?} is gone"))
}

/// The curve of a pool.
pub(super) fn curve_of(pool: &TenantStatus) -> anyhow::Result<&CurveStatus> {
    pool.curve.as_ref().ok_or_else(|| {
        anyhow!(
            "expected a miss-ratio curve of {path}, found none yet: it takes 1,024 reads of sampled blocks. One block in 32 is \
             sampled, and fewer of a large pool: that is 33,000 reads or more. Ask again when it has read; `justitia cache top` \
             shows how many blocks it reads",
            path = plain(&pool.path)
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stats() -> Value {
        let curve =
            serde_json::json!({ "accesses": 50.0, "points": [[0, 1.0], [100, 0.5], [300, 0.0]] });
        serde_json::json!({ "cache": {
            "stores": [{ "store": "memory", "capacity_bytes": 1000 }],
            "vms": [
                { "name": "web", "weight": 200, "pools": [
                    { "name": "default", "memory_weight": 100, "memory_bytes": 7 },
                    { "name": "db", "memory_weight": 0, "ssd_weight": 30, "ssd_bytes": 200, "curve": curve },
                ]},
                { "name": "db", "weight": 100, "pools": [
                    { "name": "default", "memory_weight": 50, "ssd_weight": 5, "memory_bytes": 100,
                      "ssd_bytes": 100, "curve": curve },
                ]},
            ],
        }})
    }

    #[test]
    fn pools_are_below_their_vms_with_what_they_take_in_of_the_store() {
        let status = pools(&stats(), StoreKind::Memory);
        assert_eq!(status.memory.cache_divisible, 1000);
        let found: Vec<_> = status
            .tenants
            .iter()
            .map(|t| (t.path.as_str(), t.parent, t.weight, t.demand))
            .collect();
        assert_eq!(
            found,
            [
                ("web", None, 200, None),
                ("web/default", Some(0), 100, Some(7)),
                ("web/db", Some(0), 0, Some(0)),
                ("db", None, 100, None),
                ("db/default", Some(3), 50, None),
            ]
        );
    }

    #[test]
    fn the_curve_of_one_store_begins_at_what_the_other_holds() {
        let memory = pools(&stats(), StoreKind::Memory);
        let curve = curve_of(&memory.tenants[4]).unwrap();
        assert_eq!(curve.points, [(0, 0.5), (200, 0.0)]);
        let ssd = pools(&stats(), StoreKind::Ssd);
        assert_eq!(ssd.tenants[2].curve.as_ref().unwrap().miss_ratio(200), 0.25);
        let none = curve_of(&memory.tenants[1]).unwrap_err().to_string();
        assert!(
            none.starts_with("expected a miss-ratio curve of web/default, found none yet"),
            "{none}"
        );
        assert!(none.contains("33,000 reads"), "{none}");
    }

    #[test]
    fn a_pool_is_named_with_its_vm_or_alone_where_only_one_has_it() {
        let status = pools(&stats(), StoreKind::Memory);
        assert_eq!(named(&status, "web/db").unwrap(), 2);
        assert_eq!(named(&status, "db/default").unwrap(), 4);
        assert_eq!(named(&status, "db").unwrap(), 2, "no VM is meant");
        for (name, words) in [
            ("default", "could be any of\n  web/default\n  db/default"),
            ("x", "the nearest are"),
        ] {
            let error = named(&status, name).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
    }

    #[test]
    fn what_an_older_daemon_says_does_no_harm() {
        let old = serde_json::json!({ "cache": { "vms": [{ "name": 3, "pools": [
            { "name": "p", "curve": [{ "bytes": 0, "miss_ratio": 1.0 }] }, 7,
        ]}]}});
        let status = pools(&old, StoreKind::Memory);
        assert_eq!(status.tenants.len(), 3);
        assert!(status.tenants.iter().all(|tenant| tenant.curve.is_none()));
    }
}
