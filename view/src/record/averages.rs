//! What tenants read on average over a recording.

use std::collections::HashMap;

use justitia_api::{AppStatus, TenantStatus};
use justitia_share::num::to_f64;
use serde::Serialize;

use super::{RecordError, Recording};

/// What a tenant's applications read on average, over the time in which that was seen.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TenantAverage {
    /// The path of its cgroup.
    pub path: String,
    /// Its name for people.
    pub name: String,
    /// For how long what its applications read was seen, seconds.
    pub seconds: f64,
    /// Bytes that they read, per second.
    pub read_rate: f64,
    /// The part of the bytes read through the page cache that was found there, 0 to 1; `None` where none were read.
    pub hit_ratio: Option<f64>,
}

/// The averages of every tenant of a recording, in the order in which tenants come in it. Cgroups that runtimes make inside
/// their containers are left out: they count there.
///
/// # Errors
/// If a block cannot be read.
pub fn averages(recording: &mut Recording) -> Result<Vec<TenantAverage>, RecordError> {
    let mut sums: HashMap<u64, Sum> = HashMap::new();
    for position in 0..recording.len() {
        let status = recording.status(position)?;
        for tenant in status.tenants.iter().filter(|one| one.part.is_none()) {
            let Some(app) = tenant.app else { continue };
            let order = sums.len();
            let sum = sums
                .entry(tenant.id)
                .or_insert_with(|| Sum::new(order, tenant, status.uptime, app));
            sum.add(status.uptime, app);
        }
    }
    let mut sums: Vec<Sum> = sums.into_values().collect();
    sums.sort_by_key(|sum| sum.order);
    Ok(sums.into_iter().map(Sum::average).collect())
}

/// What was read so far.
#[derive(Debug)]
struct Sum {
    order: usize,
    path: String,
    name: String,
    /// The agent's uptime and the tenant's counters when they were seen last.
    last: (f64, AppStatus),
    seconds: f64,
    read: u64,
    cache_read: u64,
    cache_miss: u64,
}

impl Sum {
    fn new(order: usize, tenant: &TenantStatus, uptime: f64, app: AppStatus) -> Self {
        Self {
            order,
            path: tenant.path.clone(),
            name: tenant.display_name(),
            last: (uptime, app),
            seconds: 0.0,
            read: 0,
            cache_read: 0,
            cache_miss: 0,
        }
    }

    /// Adds what was read since the last status. Another agent counts from 0: what lies between the two is not known.
    fn add(&mut self, uptime: f64, app: AppStatus) {
        let (at, before) = std::mem::replace(&mut self.last, (uptime, app));
        if let Some(read) = app.read_bytes.checked_sub(before.read_bytes)
            && let Some(cache_read) = app.cache_read_bytes.checked_sub(before.cache_read_bytes)
            && let Some(cache_miss) = app.cache_miss_bytes.checked_sub(before.cache_miss_bytes)
            && uptime > at
        {
            self.seconds += uptime - at;
            self.read += read;
            self.cache_read += cache_read;
            self.cache_miss += cache_miss;
        }
    }

    fn average(self) -> TenantAverage {
        let missed = to_f64(self.cache_miss) / to_f64(self.cache_read);
        TenantAverage {
            read_rate: to_f64(self.read) / self.seconds.max(f64::MIN_POSITIVE),
            hit_ratio: (self.cache_read > 0).then(|| (1.0 - missed).max(0.0)),
            path: self.path,
            name: self.name,
            seconds: self.seconds,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Recorder;
    use super::*;
    use justitia_api::Status;

    /// A tenant whose applications have read so much so far, of which the cache did not have `missed`.
    fn tenant(id: u64, name: &str, read: u64, missed: u64) -> TenantStatus {
        TenantStatus {
            id,
            path: format!("system.slice/{name}.scope"),
            name: name.to_owned(),
            app: Some(AppStatus {
                read_bytes: read,
                cache_read_bytes: read,
                cache_miss_bytes: missed,
                ..AppStatus::default()
            }),
            ..TenantStatus::default()
        }
    }

    #[test]
    fn averages_are_of_what_was_read_while_a_tenant_was_there() {
        let part = TenantStatus {
            part: Some("container".to_owned()),
            ..tenant(3, "db", 9000, 0)
        };
        let unseen = TenantStatus {
            app: None,
            ..tenant(4, "unseen", 0, 0)
        };
        let statuses = [
            (10.0, vec![tenant(1, "db", 1000, 900), part, unseen]),
            (
                11.0,
                vec![tenant(1, "db", 3000, 1000), tenant(2, "backup", 50, 50)],
            ),
            (
                13.0,
                vec![tenant(1, "db", 4000, 1300), tenant(2, "backup", 650, 650)],
            ),
            // Another agent: what it has counted before it was asked first is of an unknown time.
            (1.0, vec![tenant(1, "db", 700, 700)]),
            (2.0, vec![tenant(1, "db", 1700, 700)]),
        ];
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("r");
        let mut recorder = Recorder::create(&path).unwrap();
        let mut time = 1000.0;
        for (uptime, tenants) in statuses {
            time += 1.0;
            let status = Status {
                uptime,
                time,
                tenants,
                ..Status::default()
            };
            recorder.record(&status).unwrap();
        }
        recorder.finish().unwrap();
        let average = |name: &str, seconds, read_rate, hit_ratio| TenantAverage {
            path: format!("system.slice/{name}.scope"),
            name: name.to_owned(),
            seconds,
            read_rate,
            hit_ratio: Some(hit_ratio),
        };
        let found = averages(&mut Recording::open(&path).unwrap()).unwrap();
        assert_eq!(
            found,
            [
                average("db", 4.0, 1000.0, 0.9),
                average("backup", 2.0, 300.0, 0.0)
            ]
        );
    }

    #[test]
    fn a_tenant_that_reads_nothing_has_no_hit_ratio() {
        let sum = Sum::new(
            0,
            &tenant(1, "db", 50, 5),
            1.0,
            tenant(1, "db", 50, 5).app.unwrap(),
        );
        let average = sum.average();
        assert_eq!((average.read_rate, average.hit_ratio), (0.0, None));
    }
}
