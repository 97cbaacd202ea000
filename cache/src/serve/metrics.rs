//! OpenMetrics over HTTP.

use super::control::Answers;
use super::service::{ServeError, Stats};
use prometheus_client::encoding::{EncodeLabelSet, text::encode};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// A server of metrics.
pub struct Metrics {
    pub address: SocketAddr,
    server: Arc<tiny_http::Server>,
    thread: std::thread::JoinHandle<()>,
}

impl Metrics {
    /// Serves metrics on `address`.
    pub fn start(address: SocketAddr, from: Arc<dyn Answers>) -> Result<Self, ServeError> {
        let error = |why: String| ServeError::Metrics { address, why };
        let server = tiny_http::Server::http(address).map_err(|e| error(e.to_string()))?;
        let server = Arc::new(server);
        let listening = server.server_addr().to_ip().unwrap_or(address);
        let serving = Arc::clone(&server);
        let thread = std::thread::Builder::new()
            .name("justitia-http".into())
            .spawn(move || {
                for request in serving.incoming_requests() {
                    respond(request, &*from);
                }
            })
            .map_err(|e| error(e.to_string()))?;
        Ok(Self {
            address: listening,
            server,
            thread,
        })
    }

    pub fn stop(self) {
        self.server.unblock();
        let _ = self.thread.join();
    }
}

fn respond(request: tiny_http::Request, from: &dyn Answers) {
    let path = request.url().split('?').next().unwrap_or_default();
    let (status, body) = match (request.method(), path) {
        (tiny_http::Method::Get, "/metrics") => text(&from.stats()).map_or_else(
            || (500, "the metrics could not be written down\n".to_owned()),
            |text| (200, text),
        ),
        _ => (404, "expected GET /metrics\n".to_owned()),
    };
    let kind = "Content-Type: application/openmetrics-text; version=1.0.0; charset=utf-8";
    let mut response = tiny_http::Response::from_string(body).with_status_code(status);
    if let (200, Ok(kind)) = (status, kind.parse::<tiny_http::Header>()) {
        response.add_header(kind);
    }
    // A client that is gone does not want the answer.
    let _ = request.respond(response);
}

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

type Level<L> = Family<L, Gauge<u64, AtomicU64>>;
type Count<L> = Family<L, Counter>;

/// The text of a scrape. Everything is set from one look at the daemon, so figures of a scrape belong
/// together.
pub fn text(stats: &Stats) -> Option<String> {
    let mut registry = Registry::with_prefix("justitia_cache");
    stores(stats, &mut registry);
    pools(stats, &mut registry);
    disks(stats, &mut registry);
    let clients: Gauge<u64, AtomicU64> = Gauge::default();
    clients.set(u64::try_from(stats.clients).unwrap_or(u64::MAX));
    registry.register("clients", "NBD clients connected", clients);
    let mut text = String::new();
    encode(&mut text, &registry).ok()?;
    Some(text)
}

fn stores(stats: &Stats, registry: &mut Registry) {
    let level = |registry: &mut Registry, name: &str, help: &str| {
        let family = Level::<Store>::default();
        registry.register_with_unit(name, help, Unit::Bytes, family.clone());
        family
    };
    let capacity = level(registry, "store_capacity", "What a store may hold");
    let used = level(registry, "store_used", "What a store holds");
    let metadata = level(
        registry,
        "store_metadata",
        "Memory that finds a store's blocks",
    );
    let failed = Level::<Store>::default();
    registry.register(
        "store_failed",
        "1 when a store is out of use",
        failed.clone(),
    );
    let errors = Count::<Store>::default();
    registry.register("store_errors", "Errors of a store's device", errors.clone());
    for store in &stats.cache.stores {
        let label = Store {
            store: store.store.to_string(),
        };
        capacity.get_or_create(&label).set(store.capacity_bytes);
        used.get_or_create(&label).set(store.used_bytes);
        metadata.get_or_create(&label).set(store.metadata_bytes);
        failed
            .get_or_create(&label)
            .set(u64::from(store.failed.is_some()));
        errors.get_or_create(&label).inc_by(store.errors);
    }
}

fn pools(stats: &Stats, registry: &mut Registry) {
    let used = Level::<PoolStore>::default();
    registry.register_with_unit("pool_used", "What a pool holds", Unit::Bytes, used.clone());
    let entitled = Level::<Pool>::default();
    let help = "What a pool is entitled to in its store";
    registry.register_with_unit("pool_entitlement", help, Unit::Bytes, entitled.clone());
    let weight = Level::<Pool>::default();
    registry.register("pool_weight", "A pool's weight in its VM", weight.clone());
    let hits = Count::<PoolStore>::default();
    registry.register("pool_hits", "Blocks found", hits.clone());
    let count = |registry: &mut Registry, name: &str, help: &str| {
        let family = Count::<Pool>::default();
        registry.register(name, help, family.clone());
        family
    };
    let gets = count(registry, "pool_gets", "Blocks looked up");
    let puts = count(registry, "pool_puts", "Blocks inserted");
    let dropped = count(
        registry,
        "pool_puts_dropped",
        "Blocks that could not be inserted",
    );
    let evictions = count(registry, "pool_evictions", "Blocks evicted");
    let invalidations = count(
        registry,
        "pool_invalidations",
        "Blocks removed because the disk changed",
    );
    for vm in &stats.cache.vms {
        for pool in &vm.pools {
            let label = Pool {
                vm: vm.name.clone(),
                pool: pool.name.clone(),
            };
            let of = |store: &str| PoolStore {
                vm: vm.name.clone(),
                pool: pool.name.clone(),
                store: store.to_owned(),
            };
            let (memory, ssd) = (of("memory"), of("ssd"));
            used.get_or_create(&memory).set(pool.memory_bytes);
            used.get_or_create(&ssd).set(pool.ssd_bytes);
            entitled.get_or_create(&label).set(pool.entitlement_bytes);
            weight.get_or_create(&label).set(pool.weight);
            hits.get_or_create(&memory).inc_by(pool.counts.memory_hits);
            hits.get_or_create(&ssd).inc_by(pool.counts.ssd_hits);
            gets.get_or_create(&label).inc_by(pool.counts.gets);
            puts.get_or_create(&label).inc_by(pool.counts.puts);
            dropped
                .get_or_create(&label)
                .inc_by(pool.counts.puts_dropped);
            evictions
                .get_or_create(&label)
                .inc_by(pool.counts.evictions);
            invalidations
                .get_or_create(&label)
                .inc_by(pool.counts.invalidations);
        }
    }
}

fn disks(stats: &Stats, registry: &mut Registry) {
    let count = |registry: &mut Registry, name: &str, help: &str| {
        let family = Count::<Disk>::default();
        registry.register(name, help, family.clone());
        family
    };
    let reads = count(registry, "disk_reads", "READ requests answered");
    let read_bytes = count(registry, "disk_read_bytes", "Bytes read");
    let at_once = count(
        registry,
        "disk_reads_at_once",
        "READs answered without waiting",
    );
    let writes = count(
        registry,
        "disk_writes",
        "Writes, trims and zeroings answered",
    );
    let write_bytes = count(registry, "disk_write_bytes", "Bytes they covered");
    let errors = count(registry, "disk_errors", "Requests answered with an error");
    for export in &stats.exports {
        let label = Disk {
            disk: export.name.clone(),
        };
        reads.get_or_create(&label).inc_by(export.reads);
        read_bytes.get_or_create(&label).inc_by(export.read_bytes);
        at_once.get_or_create(&label).inc_by(export.reads_at_once);
        writes.get_or_create(&label).inc_by(export.writes);
        write_bytes.get_or_create(&label).inc_by(export.write_bytes);
        errors.get_or_create(&label).inc_by(export.errors);
    }
}
