//! What a run has found.

use super::clock::Clock;
use super::container::Counts;
use super::schedule::Record;
use super::world::World;
use justitia_cache::lab::BLOCK_BYTES;
use justitia_share::num::to_f64;
use serde::Serialize;
use std::collections::BTreeMap;

/// Bytes of a container over time.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Series {
    /// `memory` or `ssd`.
    pub store: &'static str,
    /// The container.
    pub container: String,
    /// Pairs of seconds and bytes, both as they were before the division by scale.
    pub points: Vec<(f64, f64)>,
}

/// One run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Measured {
    /// The key of the configuration.
    pub configuration: String,
    /// What a read of the disk takes, milliseconds.
    pub delay_ms: f64,
    /// How time passed.
    pub clock: Clock,
    /// Which repeat, from 0.
    pub repeat: u32,
    /// By container and measure. Measures: see [`MEASURES`].
    pub containers: Vec<(String, BTreeMap<&'static str, f64>)>,
    /// Of the run as a whole. `settle_s`: seconds, as they were before the division, until the last change that settles had
    /// arrived; `wrong`: blocks that were stale or another's; `refused`: puts that were.
    pub values: BTreeMap<String, f64>,
    /// What each container held.
    pub timeline: Vec<Series>,
}

/// The measures of a container: key, words.
pub const MEASURES: [(&str, &str); 8] = [
    ("throughput", "Throughput"),
    ("latency", "Mean time of a file operation"),
    ("hit_ratio", "Gets of the cache that hit"),
    (
        "lookup_to_store",
        "Blocks got of those put (lookup-to-store)",
    ),
    ("evictions", "Blocks evicted from the cache"),
    ("disk_reads", "Reads of the disk"),
    ("memory", "Held in memory at the end"),
    ("ssd", "Held on the SSD at the end"),
];

impl Measured {
    pub(super) fn new(world: &World<'_>, record: Record, how: (f64, Clock, u32)) -> Self {
        let (delay_ms, clock, repeat) = how;
        let (before, held_before) = record.begin;
        let (after, held) = (world.counts(), world.occupancy());
        let experiment = world.experiment;
        let scale = f64::from(experiment.scale);
        let seconds = (experiment.seconds - experiment.measure_from) / experiment.time_scale();
        let containers = world.tenants.iter().enumerate().map(|(at, tenant)| {
            let began = before.get(at).copied().unwrap_or_default();
            let ended = after.get(at).copied().unwrap_or_default();
            let of = |held: &[[u64; 2]]| held.get(at).copied().unwrap_or_default();
            let window = Window {
                began,
                ended,
                held: [of(&held_before), of(&held)],
                seconds,
                scale,
            };
            (tenant.spec.name.clone(), window.values())
        });
        let sum = |of: fn(&Counts) -> u64| to_f64(after.iter().map(of).sum());
        let mut values = BTreeMap::from([
            ("wrong".to_owned(), sum(|c| c.wrong)),
            ("refused".to_owned(), sum(|c| c.refused)),
        ]);
        let settle = record.settlings.iter().enumerate().map(|(at, settling)| {
            let next = record.settlings.get(at + 1).map(|next| next.at());
            settling.seconds(&record.samples, next.unwrap_or(f64::INFINITY))
        });
        let settle: Option<Vec<f64>> = settle.collect();
        if let Some(longest) = settle.and_then(|all| all.into_iter().reduce(f64::max)) {
            values.insert("settle_s".to_owned(), longest);
        }
        Self {
            configuration: world.configuration.id.clone(),
            delay_ms,
            clock,
            repeat,
            containers: containers.collect(),
            values,
            timeline: timeline(world, &record.samples),
        }
    }

    /// A measure of a container; `None` when it did not take part.
    #[must_use]
    pub fn of(&self, container: &str, measure: &str) -> Option<f64> {
        let (_, values) = self.containers.iter().find(|(name, _)| name == container)?;
        values.get(measure).copied()
    }
}

/// What happened in a container while it was measured.
struct Window {
    began: Counts,
    ended: Counts,
    /// Bytes in memory and on the SSD, at the beginning and at the end.
    held: [[u64; 2]; 2],
    seconds: f64,
    scale: f64,
}

impl Window {
    fn values(&self) -> BTreeMap<&'static str, f64> {
        let delta = |of: fn(&Counts) -> u64| to_f64(of(&self.ended) - of(&self.began));
        let (hits, puts) = (delta(|c| c.hits), delta(|c| c.puts));
        let ratio = |part: f64, whole: f64| if whole > 0.0 { part / whole } else { 0.0 };
        let [before, after] = self.held;
        let blocks = |held: [u64; 2]| to_f64(held.iter().sum::<u64>() / BLOCK_BYTES);
        // What came in and is neither there nor left otherwise.
        let stayed = blocks(after) - blocks(before);
        let evictions = puts - hits - delta(|c| c.dropped) - stayed;
        let time = (self.ended.time - self.began.time).as_secs_f64();
        BTreeMap::from([
            ("throughput", delta(|c| c.bytes) / self.seconds),
            ("latency", ratio(time, delta(|c| c.operations))),
            ("hit_ratio", ratio(hits, delta(|c| c.gets))),
            ("lookup_to_store", ratio(hits, puts)),
            ("evictions", evictions.max(0.0)),
            ("disk_reads", delta(|c| c.disk_reads)),
            ("memory", to_f64(after[0]) * self.scale),
            ("ssd", to_f64(after[1]) * self.scale),
        ])
    }
}

fn timeline(world: &World<'_>, samples: &[(f64, Vec<[u64; 2]>)]) -> Vec<Series> {
    let scale = f64::from(world.experiment.scale);
    let of = |at: usize, store: usize| {
        let held = |held: &Vec<[u64; 2]>| held.get(at).and_then(|h| h.get(store)).copied();
        let point = |(seconds, all): &(f64, _)| (*seconds, to_f64(held(all).unwrap_or(0)) * scale);
        samples.iter().map(point).collect::<Vec<_>>()
    };
    let stores = [(0, "memory"), (1, "ssd")];
    let series = world.tenants.iter().enumerate().flat_map(|(at, tenant)| {
        stores.map(|(number, store)| Series {
            store,
            container: tenant.spec.name.clone(),
            points: of(at, number),
        })
    });
    let used = |series: &Series| series.points.iter().any(|(_, bytes)| *bytes > 0.0);
    series.filter(used).collect()
}
