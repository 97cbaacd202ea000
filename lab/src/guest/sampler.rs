//! How a run goes over time: a thread that looks at every tenant a few times a second.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use justitia_share::num::to_f64;

use super::cgroup::{Cgroup, Transfer};
use super::probes::Seen;
use crate::report::schema::Series;

/// How often it looks.
const PERIOD: Duration = Duration::from_millis(500);

/// Looks until it is asked for what it has seen.
pub struct Sampler {
    begin: Instant,
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Result<Vec<Series>>>,
}

/// What is followed of a tenant.
struct Watched {
    name: String,
    cgroup: Cgroup,
    at: Instant,
    application: Transfer,
    device: Transfer,
}

impl Sampler {
    /// Begins. The whole runs' time counts from `begin`.
    pub fn start(tenants: impl Iterator<Item = (String, Cgroup)>, begin: Instant) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let watched: Vec<Watched> = tenants
            .map(|(name, cgroup)| Watched {
                name,
                cgroup,
                at: begin,
                application: Transfer::default(),
                device: Transfer::default(),
            })
            .collect();
        let thread = std::thread::spawn({
            let stop = Arc::clone(&stop);
            move || watch(watched, begin, &stop)
        });
        Self {
            begin,
            stop,
            thread,
        }
    }

    /// Ends, with what was seen since `from`, from which time counts.
    pub fn finish(self, from: Instant) -> Result<Vec<Series>> {
        self.stop.store(true, Ordering::Relaxed);
        let mut series = self
            .thread
            .join()
            .map_err(|_| anyhow!("the thread that samples the tenants panicked"))??;
        let from = from.saturating_duration_since(self.begin).as_secs_f64();
        for series in &mut series {
            series.points.retain(|(t, _)| *t >= from);
            for (t, _) in &mut series.points {
                *t = round(*t - from);
            }
        }
        Ok(series)
    }
}

fn watch(mut watched: Vec<Watched>, begin: Instant, stop: &AtomicBool) -> Result<Vec<Series>> {
    let mut series: BTreeMap<(&str, String), Vec<(f64, f64)>> = BTreeMap::new();
    let mut next = begin;
    let mut before = Seen::default();
    while !stop.load(Ordering::Relaxed) {
        let seen = Seen::now()?;
        for tenant in &mut watched {
            let pages = tenant.cgroup.file_pages()?;
            let application = tenant.cgroup.application()?;
            let device = tenant.cgroup.device()?;
            let now = Instant::now();
            let t = (now - begin).as_secs_f64();
            let seconds = (now - tenant.at).as_secs_f64().max(1e-3);
            let rate =
                |now: Transfer, before: Transfer| to_f64(now.since(before).total()) / seconds;
            // Where no probes run, the processes' own counts: one that ends takes its own with it, which counts as
            // nothing.
            let bandwidth = match seen.bytes(&tenant.name, &before) {
                Some(bytes) => to_f64(bytes) / seconds,
                None => rate(application, tenant.application),
            };
            for (metric, value) in [
                ("pages", Some(to_f64(pages).round())),
                ("bandwidth", Some(bandwidth.round())),
                ("device", Some(rate(device, tenant.device).round())),
                ("hit_ratio", seen.hit_ratio(&tenant.name, &before)),
            ] {
                if let Some(value) = value {
                    let points = series.entry((metric, tenant.name.clone())).or_default();
                    points.push((round(t), value));
                }
            }
            tenant.at = now;
            tenant.application = application;
            tenant.device = device;
        }
        before = seen;
        next += PERIOD;
        std::thread::sleep(next.saturating_duration_since(Instant::now()));
    }
    Ok(series
        .into_iter()
        .map(|((metric, tenant), points)| Series {
            metric: metric.to_owned(),
            tenant,
            points,
        })
        .collect())
}

fn round(seconds: f64) -> f64 {
    (seconds * 1000.0).round() / 1000.0
}
