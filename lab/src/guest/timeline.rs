//! The tenants' values over time: a thread that samples every tenant a few times a second.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use justitia_share::num::to_f64;

use super::app_counters::AppCounters;
use super::cgroup::{Cgroup, Transfer};
use crate::report::schema::Series;

/// The sampling interval.
const PERIOD: Duration = Duration::from_millis(500);

/// Samples until it is stopped.
pub(super) struct TimelineSampler {
    begin: Instant,
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Result<Vec<Series>>>,
}

/// A tenant, and its counters in the sample before.
struct Sampled {
    name: String,
    cgroup: Cgroup,
    at: Instant,
    application: Transfer,
    device: Transfer,
}

impl TimelineSampler {
    /// Begins. Time counts from `begin`.
    pub(super) fn start(tenants: impl Iterator<Item = (String, Cgroup)>, begin: Instant) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let sampled: Vec<Sampled> = tenants
            .map(|(name, cgroup)| Sampled {
                name,
                cgroup,
                at: begin,
                application: Transfer::default(),
                device: Transfer::default(),
            })
            .collect();
        let thread = std::thread::spawn({
            let stop = Arc::clone(&stop);
            move || sample(sampled, begin, &stop)
        });
        Self {
            begin,
            stop,
            thread,
        }
    }

    /// Ends, and returns the samples since `from`, with their time from there.
    pub(super) fn finish(self, from: Instant) -> Result<Vec<Series>> {
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

fn sample(mut sampled: Vec<Sampled>, begin: Instant, stop: &AtomicBool) -> Result<Vec<Series>> {
    let mut series: BTreeMap<(&str, String), Vec<(f64, f64)>> = BTreeMap::new();
    let mut next = begin;
    let mut before = AppCounters::default();
    while !stop.load(Ordering::Relaxed) {
        let counters = AppCounters::sample()?;
        for tenant in &mut sampled {
            let pages = tenant.cgroup.file_pages()?;
            let application = tenant.cgroup.application()?;
            let device = tenant.cgroup.device()?;
            let now = Instant::now();
            let t = (now - begin).as_secs_f64();
            let seconds = (now - tenant.at).as_secs_f64().max(1e-3);
            let rate =
                |now: Transfer, before: Transfer| to_f64(now.since(before).total()) / seconds;
            // Where no probes run, the processes' own counters. Those of a process that ends are lost.
            let bandwidth = match counters.bytes(&tenant.name, &before) {
                Some(bytes) => to_f64(bytes) / seconds,
                None => rate(application, tenant.application),
            };
            for (metric, value) in [
                ("pages", Some(to_f64(pages).round())),
                ("bandwidth", Some(bandwidth.round())),
                ("device", Some(rate(device, tenant.device).round())),
                ("hit_ratio", counters.hit_ratio(&tenant.name, &before)),
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
        before = counters;
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
