//! OpenMetrics: the statistics as series. Names are the configuration's, escaped as labels want it.

use super::api::Stats;
use crate::cache::{PoolStats, StoreStats};
use crate::frontend::VolumeStats;
use crate::ssd_admission::SsdAdmission;
use justitia_common::metrics::label;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};
use std::hash::Hash;
use std::sync::atomic::AtomicU64;

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Pool {
    vm: String,
    pool: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct PoolStore {
    vm: String,
    pool: String,
    store: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Store {
    store: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Disk {
    disk: String,
}

/// A metric: its name, its help, and where its value is.
type Metric<T> = (&'static str, &'static str, fn(&T) -> u64);

const STORE_BYTES: [Metric<StoreStats>; 3] = [
    ("store_capacity", "What a store may hold", |s| {
        s.capacity_bytes
    }),
    ("store_used", "What a store holds", |s| s.used_bytes),
    (
        "store_metadata",
        "Memory of the index and the records of its blocks",
        |s| s.metadata_bytes,
    ),
];
const STORE_LEVELS: [Metric<StoreStats>; 2] = [
    ("store_failed", "1 when a store has failed", |s| {
        s.failed.is_some().into()
    }),
    (
        "store_stalled",
        "1 while a store's device does not answer, and disks are read instead",
        |s| s.stalled_ms.is_some().into(),
    ),
];
const STORE_COUNTS: [Metric<StoreStats>; 1] =
    [("store_errors", "Errors of a store's device", |s| s.errors)];

const POOL_COUNTS: [Metric<PoolStats>; 9] = [
    ("pool_gets", "Blocks looked up", |p| p.counts.gets),
    (
        "pool_insertions",
        "Blocks inserted, by a put or by a miss",
        |p| p.counts.insertions,
    ),
    (
        "pool_insertions_dropped",
        "Blocks that were to be inserted and were not: no free slot, a racing write, an SSD that failed or is not worth it",
        |p| p.counts.insertions_dropped,
    ),
    ("pool_evictions", "Blocks evicted", |p| p.counts.evictions),
    ("pool_invalidations", "Blocks removed by writes", |p| {
        p.counts.invalidations
    }),
    (
        "pool_demotions",
        "Blocks that went from memory to the SSD",
        |p| p.counts.demotions,
    ),
    (
        "pool_promotions",
        "Blocks that went from the SSD to memory",
        |p| p.counts.promotions,
    ),
    (
        "pool_reinsertions",
        "Blocks that were used on the SSD and written there again",
        |p| p.counts.reinsertions,
    ),
    (
        "pool_ssd_write_bytes",
        "Bytes written to the SSD, which pools share by weight when it is busy",
        |p| p.counts.ssd_write_bytes,
    ),
];
const POOL_LEVELS: [Metric<PoolStats>; 1] = [(
    "pool_ssd_admits",
    "1 when all blocks are admitted to the SSD, 0 when it is not worth it and a few are",
    |p| (p.ssd_admits == SsdAdmission::All).into(),
)];
const DISK_COUNTS: [Metric<VolumeStats>; 8] = [
    ("disk_reads", "READ requests answered", |e| e.reads),
    ("disk_read_bytes", "Bytes read", |e| e.read_bytes),
    (
        "disk_inline_hits",
        "Reads answered from the cache without waiting",
        |e| e.inline_hits,
    ),
    (
        "disk_offloaded_requests",
        "Requests that worker threads answered, also reads that the SSD answered as a whole",
        |e| e.offloaded_requests,
    ),
    ("disk_writes", "Writes, trims and zeroings answered", |e| {
        e.writes
    }),
    ("disk_write_bytes", "Bytes they covered", |e| e.write_bytes),
    ("disk_errors", "Requests answered with an error", |e| {
        e.errors
    }),
    (
        "disk_unknown_tags",
        "Reads with the tag of a container that no pool has",
        |e| e.unknown_tags,
    ),
];

const DISK_LEVELS: [Metric<VolumeStats>; 1] = [(
    "disk_sync_failed",
    "1 when a flush or a FUA write has failed: what was written until then may be lost, and every later one fails",
    |e| e.sync_failed.is_some().into(),
)];

/// The text of a scrape: OpenMetrics 1.0. All series come from one snapshot of the statistics.
///
/// # Errors
/// If it cannot be formatted, which does not happen with a string.
pub(super) fn text(stats: &Stats) -> Result<String, String> {
    let mut registry = Registry::with_prefix("justitia_cache");
    stores(stats, &mut registry);
    pools(stats, &mut registry);
    disks(stats, &mut registry);
    ports(stats, &mut registry);
    let clients: Gauge<u64, AtomicU64> = Gauge::default();
    clients.set(u64::try_from(stats.clients).unwrap_or(u64::MAX));
    registry.register("clients", "NBD clients connected", clients);
    let unserved: Gauge<u64, AtomicU64> = Gauge::default();
    unserved.set(u64::try_from(stats.unserved.len()).unwrap_or(u64::MAX));
    let help = "Disks that are configured and cannot be served";
    registry.register("disks_unserved", help, unserved);
    let front_ends: Gauge<u64, AtomicU64> = Gauge::default();
    front_ends.set(u64::try_from(stats.vhost_front_ends).unwrap_or(u64::MAX));
    let help = "Front ends connected over vhost-user";
    registry.register("vhost_front_ends", help, front_ends);
    let mut text = String::new();
    encode(&mut text, &registry).map_err(|e| e.to_string())?;
    Ok(text)
}

fn stores(stats: &Stats, registry: &mut Registry) {
    let all = stats.cache.stores.iter();
    let rows: Vec<_> = all
        .map(|s| {
            (
                Store {
                    store: s.store.to_string(),
                },
                s,
            )
        })
        .collect();
    for (name, help, value) in STORE_BYTES {
        registry.register_with_unit(name, help, Unit::Bytes, levels(&rows, value));
    }
    for (name, help, value) in STORE_LEVELS {
        registry.register(name, help, levels(&rows, value));
    }
    for (name, help, value) in STORE_COUNTS {
        registry.register(name, help, counts(&rows, value));
    }
}

fn pools(stats: &Stats, registry: &mut Registry) {
    let vms = stats.cache.vms.iter();
    let all = vms.flat_map(|vm| vm.pools.iter().map(move |pool| (&vm.name, pool)));
    let rows: Vec<_> = all
        .map(|(vm, pool)| {
            (
                Pool {
                    vm: label(vm),
                    pool: label(&pool.name),
                },
                pool,
            )
        })
        .collect();
    for (name, help, value) in POOL_COUNTS {
        registry.register(name, help, counts(&rows, value));
    }
    for (name, help, value) in POOL_LEVELS {
        registry.register(name, help, levels(&rows, value));
    }
    pool_stores(&rows, registry);
    let named = rows.iter().map(|(of, pool)| (&*of.vm, &*of.pool, *pool));
    curves(named, registry);
}

/// What a pool has in each of the stores.
fn pool_stores(rows: &[(Pool, &PoolStats)], registry: &mut Registry) {
    let weights = Family::<PoolStore, Level>::default();
    let entitled = Family::<PoolStore, Level>::default();
    let used = Family::<PoolStore, Level>::default();
    let hits = Family::<PoolStore, Counter>::default();
    for (Pool { vm, pool: name }, pool) in rows {
        let memory = [
            pool.memory_weight,
            pool.memory_entitlement_bytes,
            pool.memory_bytes,
            pool.counts.memory_hits,
        ];
        let ssd = [
            pool.ssd_weight,
            pool.ssd_entitlement_bytes,
            pool.ssd_bytes,
            pool.counts.ssd_hits,
        ];
        for (store, [weight, entitlement, bytes, found]) in [("memory", memory), ("ssd", ssd)] {
            let label = PoolStore {
                vm: vm.clone(),
                pool: name.clone(),
                store: store.to_owned(),
            };
            weights.get_or_create(&label).set(weight);
            entitled.get_or_create(&label).set(entitlement);
            used.get_or_create(&label).set(bytes);
            hits.get_or_create(&label).inc_by(found);
        }
    }
    let help = "A pool's weight in its VM, 0 in a store that it does not use";
    registry.register("pool_weight", help, weights);
    let help = "What a pool is entitled to";
    registry.register_with_unit("pool_entitlement", help, Unit::Bytes, entitled);
    registry.register_with_unit("pool_used", "What a pool holds", Unit::Bytes, used);
    registry.register("pool_hits", "Blocks found", hits);
}

fn disks(stats: &Stats, registry: &mut Registry) {
    let all = stats.exports.iter();
    let rows: Vec<_> = all
        .map(|e| {
            (
                Disk {
                    disk: label(&e.name),
                },
                e,
            )
        })
        .collect();
    for (name, help, value) in DISK_COUNTS {
        registry.register(name, help, counts(&rows, value));
    }
    for (name, help, value) in DISK_LEVELS {
        registry.register(name, help, levels(&rows, value));
    }
}

type Level = Gauge<u64, AtomicU64>;

fn levels<L: Clone + Eq + Hash, T>(rows: &[(L, &T)], value: fn(&T) -> u64) -> Family<L, Level> {
    let family = Family::<L, Level>::default();
    for (label, of) in rows {
        family.get_or_create(label).set(value(of));
    }
    family
}

fn counts<L: Clone + Eq + Hash, T>(rows: &[(L, &T)], value: fn(&T) -> u64) -> Family<L, Counter> {
    let family = Family::<L, Counter>::default();
    for (label, of) in rows {
        family.get_or_create(label).inc_by(value(of));
    }
    family
}

// The series of pools' miss-ratio curves.

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Sized {
    vm: String,
    pool: String,
    size: &'static str,
}

/// Three series for each pool with a curve. `pools` are labels of the VM and of the pool, and the pool.
pub(super) fn curves<'a>(
    pools: impl Iterator<Item = (&'a str, &'a str, &'a PoolStats)>,
    registry: &mut Registry,
) {
    let misses = Family::<Sized, Gauge<f64, AtomicU64>>::default();
    for (vm, name, pool) in pools {
        let Some(curve) = &pool.curve else { continue };
        let holds = pool.memory_bytes + pool.ssd_bytes;
        for (size, bytes) in [
            ("half", holds / 2),
            ("same", holds),
            ("twice", holds.saturating_mul(2)),
        ] {
            let label = Sized {
                vm: vm.to_owned(),
                pool: name.to_owned(),
                size,
            };
            misses.get_or_create(&label).set(curve.miss_ratio(bytes));
        }
    }
    registry.register(
        "pool_predicted_miss_ratio",
        "The part of its gets that a pool would miss if it held half, the same or twice what it holds now",
        misses,
    );
}

// The series of ports, and of what guests hold.

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Blocks {
    vm: String,
    verdict: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Messages {
    vm: String,
    result: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Vm {
    vm: String,
}

pub(super) fn ports(stats: &Stats, registry: &mut Registry) {
    let blocks = Family::<Blocks, Counter>::default();
    let messages = Family::<Messages, Counter>::default();
    let commands = Family::<Messages, Counter>::default();
    let unknown = Family::<Vm, Counter>::default();
    for port in &stats.ports {
        let vm = label(&port.vm);
        for (verdict, count) in &port.verdicts {
            let vm = vm.clone();
            let series = Blocks { vm, verdict };
            blocks.get_or_create(&series).inc_by(*count);
        }
        let of = |result| Messages {
            vm: vm.clone(),
            result,
        };
        for (result, count) in [
            ("handled", port.messages),
            ("malformed", port.malformed),
            ("replayed", port.replayed),
        ] {
            messages.get_or_create(&of(result)).inc_by(count);
        }
        for (result, count) in [("done", port.commands), ("refused", port.commands_refused)] {
            commands.get_or_create(&of(result)).inc_by(count);
        }
        let series = Vm { vm };
        unknown.get_or_create(&series).inc_by(port.unknown_pool);
    }
    registry.register("port_blocks", "Blocks that guests offered", blocks);
    registry.register("port_messages", "Messages of guests", messages);
    registry.register("port_commands", "Commands of guests", commands);
    registry.register(
        "port_unknown_pool_blocks",
        "Offered blocks whose pool was unknown",
        unknown,
    );
    residency(stats, registry);
}

fn residency(stats: &Stats, registry: &mut Registry) {
    let known = Family::<Vm, Gauge<u64, AtomicU64>>::default();
    let capacity = Family::<Vm, Gauge<u64, AtomicU64>>::default();
    for vm in &stats.cache.vms {
        let Some(table) = vm.residency else {
            continue;
        };
        let series = Vm {
            vm: label(&vm.name),
        };
        known.get_or_create(&series).set(table.blocks);
        capacity.get_or_create(&series).set(table.capacity_blocks);
    }
    registry.register(
        "residency_blocks",
        "Blocks whose content in the guest is known",
        known,
    );
    registry.register(
        "residency_capacity_blocks",
        "Blocks whose content can be known",
        capacity,
    );
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::cache::Cache;
    use crate::config::{CacheConfig, Policy, PoolSpec};
    use crate::ids::PoolId;
    use justitia_api::CurveStatus;
    use justitia_share::Weight;

    /// A VM with a port, a pool and a disk, all of hostile names.
    pub(in crate::serve) fn hostile() -> Stats {
        let cache = Cache::new(CacheConfig::default()).unwrap();
        let weight = Weight::default();
        let vm = cache
            .add_vm("a\"} 1\n# HELP x\\", weight, Policy::Fifo)
            .unwrap();
        let hostile = "b\",pool=\"c";
        cache.create_pool(vm, hostile, PoolSpec::default()).unwrap();
        cache.track_residency(vm, 4096).unwrap();
        Stats {
            cache: cache.stats(),
            exports: vec![VolumeStats {
                name: "d\\\"".into(),
                reads: 7,
                ..VolumeStats::default()
            }],
            unserved: Vec::new(),
            ports: vec![crate::port::PortStats {
                vm: "v\"".into(),
                malformed: 5,
                verdicts: [("mismatch", 9)].into(),
                ..Default::default()
            }],
            pools_of_guests: Default::default(),
            clients: 3,
            vhost_front_ends: 1,
            io_uring_unsupported: None,
        }
    }

    #[test]
    fn alerts_name_only_series_that_exist() {
        let rules = concat!(env!("CARGO_MANIFEST_DIR"), "/../packaging/cache-alerts.yml");
        let rules = std::fs::read_to_string(rules).unwrap();
        let mut stats = hostile();
        stats.cache.vms[0].pools[0].curve = Some(justitia_api::CurveStatus::default());
        let text = text(&stats).unwrap();
        let words = |of: &str| -> std::collections::BTreeSet<String> {
            let words = of.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
            let ours = words.filter(|word| word.starts_with("justitia_cache_"));
            ours.map(str::to_owned).collect()
        };
        let samples = text.lines().filter(|line| !line.starts_with('#'));
        let known = words(&samples.collect::<Vec<_>>().join("\n"));
        let named = words(&rules);
        assert!(named.len() >= 5, "{named:?}");
        let unknown: Vec<_> = named.difference(&known).collect();
        assert!(unknown.is_empty(), "{unknown:?}");
    }

    #[test]
    fn promtool_accepts_the_metrics_whatever_the_names() {
        let text = text(&hostile()).unwrap();
        assert!(text.ends_with("# EOF\n"));
        for line in [
            "justitia_cache_port_blocks_total{vm=\"v\\\"\",verdict=\"mismatch\"} 9\n",
            "justitia_cache_port_messages_total{vm=\"v\\\"\",result=\"malformed\"} 5\n",
        ] {
            assert!(text.contains(line), "{text}");
        }
        assert!(
            text.contains("justitia_cache_disk_reads_total{disk=\"d\\\\\\\"\"} 7\n"),
            "{text}"
        );
        let counted = justitia_promtool::check(&text).unwrap();
        assert!(
            counted.contains("justitia_cache_pool_used_bytes"),
            "{counted}"
        );
    }

    #[test]
    fn a_pool_with_a_curve_has_three_series_and_one_without_has_none() {
        let pool = |curve| PoolStats {
            id: PoolId {
                index: 0,
                generation: 0,
            },
            name: String::new(),
            memory_weight: 100,
            ssd_weight: 0,
            memory_entitlement_bytes: 0,
            ssd_entitlement_bytes: 0,
            memory_bytes: 30,
            ssd_bytes: 10,
            ssd_admits: crate::ssd_admission::SsdAdmission::All,
            counts: crate::cache::Counts::default(),
            curve,
        };
        let curve = CurveStatus {
            accesses: 1.0,
            points: vec![(0, 1.0), (80, 0.0)],
        };
        let (known, unknown) = (pool(Some(curve)), pool(None));
        let rows = [("v", "a", &known), ("v", "b", &unknown)];
        let mut registry = Registry::default();
        curves(rows.into_iter(), &mut registry);
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        for (size, ratio) in [("half", "0.75"), ("same", "0.5"), ("twice", "0.0")] {
            let line =
                format!("pool_predicted_miss_ratio{{vm=\"v\",pool=\"a\",size=\"{size}\"}} {ratio}");
            assert!(text.contains(&line), "{line} is not in {text}");
        }
        assert!(!text.contains("pool=\"b\""), "{text}");
    }
}
