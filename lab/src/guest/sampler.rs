//! How a run goes over time: a thread that looks at every tenant a few times a second.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use justitia_share::num::to_f64;

use super::cgroup::{Cgroup, Transfer};
use super::eyes::Seen;
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
    calls: Calls,
    device: Transfer,
}

/// By which calls a tenant moves its bytes of late. What it does without read and write (io_uring, libaio)
/// is not in its processes' counts, and only the probes see it; but those are read at times of the agent's
/// own, so the counts are preferred where most is in them.
#[derive(Default)]
struct Calls {
    counted: f64,
    seen: f64,
}

impl Calls {
    /// What of before still matters a sample later.
    const KEPT: f64 = 0.8;

    /// The rate to believe, of the processes' own counts and of the probes.
    fn choose(&mut self, counted: f64, seen: f64) -> f64 {
        self.counted = self.counted * Self::KEPT + counted;
        self.seen = self.seen * Self::KEPT + seen;
        if self.counted * 2.0 < self.seen {
            seen
        } else {
            counted
        }
    }
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
                calls: Calls::default(),
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
            // A process that ends takes its count with it: the fall counts as nothing.
            let counted = rate(application, tenant.application);
            let moved = seen.bytes(&tenant.name, &before);
            let seen_rate = moved.map_or(0.0, |bytes| to_f64(bytes) / seconds);
            let bandwidth = tenant.calls.choose(counted, seen_rate);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_processes_do_not_count_is_taken_from_the_probes() {
        let mut calls = Calls::default();
        // read and write: the probes are read in bursts.
        let buffered = [(100.0, 0.0), (100.0, 0.0), (100.0, 300.0), (100.0, 100.0)];
        for (counted, seen) in buffered {
            assert_eq!(calls.choose(counted, seen).to_bits(), counted.to_bits());
        }
        // Then libaio; what is counted are fio's own messages.
        let last = (0..8).map(|_| calls.choose(0.6, 80.0)).last();
        assert_eq!(last, Some(80.0));
        assert_eq!(calls.choose(0.6, 90.0).to_bits(), 90_f64.to_bits());
    }
}
