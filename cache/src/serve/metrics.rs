//! OpenMetrics: the statistics as series. Label values are names from the configuration, escaped.

use super::api::Stats;
use crate::cache::{PoolStats, StoreStats};
use crate::frontend::VolumeStats;
use crate::ssd_admission::SsdAdmission;
use justitia_common::metric_table;
use justitia_common::metrics::{Labels, Level, Metric, counts, label, levels};
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};
use std::sync::atomic::AtomicU64;

/// Gauges of the daemon.
const LEVELS: &[Metric<Stats>] = metric_table! {
    "clients": |s| number(s.clients), "NBD clients connected";
    "disks_unserved": |s| number(s.unserved.len()), "Disks that are configured and cannot be served";
    "vhost_front_ends": |s| number(s.vhost_front_ends), "Front ends connected over vhost-user";
};
const STORE_BYTES: &[Metric<StoreStats>] = metric_table! {
    "store_capacity": |s| s.capacity_bytes, "Capacity of a store";
    "store_used": |s| s.used_bytes, "Bytes used in a store";
    "store_metadata": |s| s.metadata_bytes, "Memory of the index and the records of its blocks";
};
const STORE_LEVELS: &[Metric<StoreStats>] = metric_table! {
    "store_failed": |s| s.failed.is_some().into(), "1 when a store has failed";
    "store_stalled": |s| s.stalled_ms.is_some().into(),
        "1 while a store's device does not answer, and disks are read instead";
};
const STORE_COUNTS: &[Metric<StoreStats>] = metric_table! {
    "store_errors": |s| s.errors, "Errors of a store's device";
};

const POOL_COUNTS: &[Metric<PoolStats>] = metric_table! {
    "pool_gets": |p| p.counts.gets, "Blocks looked up";
    "pool_insertions": |p| p.counts.insertions, "Blocks inserted, by a put or by a miss";
    "pool_insertions_dropped": |p| p.counts.insertions_dropped,
        "Blocks not inserted: no free slot, a racing write, an SSD that failed or is not worth it";
    "pool_evictions": |p| p.counts.evictions, "Blocks evicted";
    "pool_invalidations": |p| p.counts.invalidations, "Blocks removed by writes";
    "pool_demotions": |p| p.counts.demotions, "Blocks that went from memory to the SSD";
    "pool_promotions": |p| p.counts.promotions, "Blocks that went from the SSD to memory";
    "pool_reinsertions": |p| p.counts.reinsertions, "Blocks that were used on the SSD and written there again";
    "pool_ssd_write_bytes": |p| p.counts.ssd_write_bytes,
        "Bytes written to the SSD, which pools share by weight when it is busy";
};
const POOL_LEVELS: &[Metric<PoolStats>] = metric_table! {
    "pool_ssd_admits": |p| (p.ssd_admits == SsdAdmission::All).into(),
        "1 when all blocks are admitted to the SSD, 0 when it is not worth it and only a few are";
};
const DISK_COUNTS: &[Metric<VolumeStats>] = metric_table! {
    "disk_reads": |e| e.reads, "READ requests answered";
    "disk_read_bytes": |e| e.read_bytes, "Bytes read";
    "disk_inline_hits": |e| e.inline_hits, "Reads answered from the cache without waiting";
    "disk_offloaded_requests": |e| e.offloaded_requests,
        "Requests that worker threads answered, also reads that the SSD answered as a whole";
    "disk_writes": |e| e.writes, "Writes, trims and zeroings answered";
    "disk_write_bytes": |e| e.write_bytes, "Bytes of these requests";
    "disk_errors": |e| e.errors, "Requests answered with an error";
    "disk_unknown_tags": |e| e.unknown_tags, "Reads with the tag of a container that no pool has";
};

const DISK_LEVELS: &[Metric<VolumeStats>] = metric_table! {
    "disk_sync_failed": |e| e.sync_failed.is_some().into(),
        "1 when a flush or a FUA write has failed: earlier writes may be lost, and all later flushes and FUA writes fail";
};

/// The text of a scrape: OpenMetrics 1.0. All series come from one snapshot of the statistics.
///
/// # Errors
/// If formatting fails, which it does not for a string.
pub(super) fn text(stats: &Stats) -> Result<String, String> {
    let mut registry = Registry::with_prefix("justitia_cache");
    stores(stats, &mut registry);
    pools(stats, &mut registry);
    disks(stats, &mut registry);
    ports(stats, &mut registry);
    for &(name, help, value) in LEVELS {
        let level = Level::default();
        level.set(value(stats));
        registry.register(name, help, level);
    }
    let mut text = String::new();
    encode(&mut text, &registry).map_err(|e| e.to_string())?;
    Ok(text)
}

fn number(count: usize) -> u64 {
    u64::try_from(count).unwrap_or(u64::MAX)
}

fn stores(stats: &Stats, registry: &mut Registry) {
    let all = stats.cache.stores.iter();
    let labels = |s: &StoreStats| vec![("store", s.store.to_string())];
    let rows: Vec<_> = all.map(|s| (labels(s), s)).collect();
    for &(name, help, value) in STORE_BYTES {
        registry.register_with_unit(name, help, Unit::Bytes, levels(&rows, value));
    }
    for &(name, help, value) in STORE_LEVELS {
        registry.register(name, help, levels(&rows, value));
    }
    for &(name, help, value) in STORE_COUNTS {
        registry.register(name, help, counts(&rows, value));
    }
}

fn pools(stats: &Stats, registry: &mut Registry) {
    let vms = stats.cache.vms.iter();
    let all = vms.flat_map(|vm| vm.pools.iter().map(move |pool| (&vm.name, pool)));
    let labels = |vm: &str, pool: &PoolStats| vec![("vm", label(vm)), ("pool", label(&pool.name))];
    let rows: Vec<_> = all.map(|(vm, pool)| (labels(vm, pool), pool)).collect();
    for &(name, help, value) in POOL_COUNTS {
        registry.register(name, help, counts(&rows, value));
    }
    for &(name, help, value) in POOL_LEVELS {
        registry.register(name, help, levels(&rows, value));
    }
    pool_stores(&rows, registry);
    curves(&rows, registry);
}

/// `labels` and one more.
fn with(labels: &Labels, name: &'static str, value: &str) -> Labels {
    labels
        .iter()
        .cloned()
        .chain([(name, value.to_owned())])
        .collect()
}

/// The series of a pool in each store.
fn pool_stores(rows: &[(Labels, &PoolStats)], registry: &mut Registry) {
    let weights = Family::<Labels, Level>::default();
    let entitled = Family::<Labels, Level>::default();
    let used = Family::<Labels, Level>::default();
    let hits = Family::<Labels, Counter>::default();
    for (labels, pool) in rows {
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
            let labels = with(labels, "store", store);
            weights.get_or_create(&labels).set(weight);
            entitled.get_or_create(&labels).set(entitlement);
            used.get_or_create(&labels).set(bytes);
            hits.get_or_create(&labels).inc_by(found);
        }
    }
    let help = "A pool's weight in its VM, 0 in a store that it does not use";
    registry.register("pool_weight", help, weights);
    let help = "Entitlement of a pool";
    registry.register_with_unit("pool_entitlement", help, Unit::Bytes, entitled);
    registry.register_with_unit("pool_used", "Bytes used by a pool", Unit::Bytes, used);
    registry.register("pool_hits", "Blocks found", hits);
}

fn disks(stats: &Stats, registry: &mut Registry) {
    let all = stats.exports.iter();
    let rows: Vec<_> = all.map(|e| (vec![("disk", label(&e.name))], e)).collect();
    for &(name, help, value) in DISK_COUNTS {
        registry.register(name, help, counts(&rows, value));
    }
    for &(name, help, value) in DISK_LEVELS {
        registry.register(name, help, levels(&rows, value));
    }
}

/// Three series for each pool with a miss-ratio curve.
fn curves(pools: &[(Labels, &PoolStats)], registry: &mut Registry) {
    let misses = Family::<Labels, Gauge<f64, AtomicU64>>::default();
    for (labels, pool) in pools {
        let Some(curve) = &pool.curve else { continue };
        let holds = pool.memory_bytes + pool.ssd_bytes;
        for (size, bytes) in [
            ("half", holds / 2),
            ("same", holds),
            ("twice", holds.saturating_mul(2)),
        ] {
            let labels = with(labels, "size", size);
            misses.get_or_create(&labels).set(curve.miss_ratio(bytes));
        }
    }
    registry.register(
        "pool_predicted_miss_ratio",
        "The part of its gets that a pool would miss if it held half, the same or twice what it holds now",
        misses,
    );
}

/// The series of ports.
fn ports(stats: &Stats, registry: &mut Registry) {
    let blocks = Family::<Labels, Counter>::default();
    let messages = Family::<Labels, Counter>::default();
    let commands = Family::<Labels, Counter>::default();
    let all = stats.ports.iter();
    let rows: Vec<_> = all
        .map(|port| (vec![("vm", label(&port.vm))], port))
        .collect();
    for (vm, port) in &rows {
        for (verdict, count) in &port.verdicts {
            let labels = with(vm, "verdict", verdict);
            blocks.get_or_create(&labels).inc_by(*count);
        }
        let of = |result| with(vm, "result", result);
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
    }
    registry.register("port_blocks", "Blocks that guests offered", blocks);
    registry.register("port_messages", "Messages of guests", messages);
    registry.register("port_commands", "Commands of guests", commands);
    registry.register(
        "port_unknown_pool_blocks",
        "Offered blocks whose pool was unknown",
        counts(&rows, |port| port.unknown_pool),
    );
    residency(stats, registry);
}

/// The series of the residency tables.
fn residency(stats: &Stats, registry: &mut Registry) {
    let known = stats.cache.vms.iter().filter_map(|vm| {
        let labels = vec![("vm", label(&vm.name))];
        Some((labels, vm.residency.as_ref()?))
    });
    let rows: Vec<_> = known.collect();
    registry.register(
        "residency_blocks",
        "Blocks whose content in the guest is known",
        levels(&rows, |table| table.blocks),
    );
    registry.register(
        "residency_capacity_blocks",
        "Blocks whose content can be known",
        levels(&rows, |table| table.capacity_blocks),
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
        let labels = |pool: &str| vec![("vm", "v".to_owned()), ("pool", pool.to_owned())];
        let rows = [(labels("a"), &known), (labels("b"), &unknown)];
        let mut registry = Registry::default();
        curves(&rows, &mut registry);
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
