//! What the application saw: bytes, operations, latencies, errors.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use hdrhistogram::Histogram;

use crate::step::Step;

/// Longest latency that has a bucket of its own, in microseconds (ten minutes).
const LONGEST: u64 = 600_000_000;

/// Latencies in microseconds with two significant digits.
pub(crate) type Latencies = Histogram<u32>;

/// The counters of all workers.
#[derive(Default)]
pub(crate) struct Counters {
    /// Bytes that reads returned.
    pub read: AtomicU64,
    /// Bytes that writes accepted.
    pub written: AtomicU64,
    /// Operations that succeeded.
    pub operations: AtomicU64,
    /// Operations that failed.
    pub errors: AtomicU64,
    /// Loops through a personality's steps.
    pub loops: AtomicU64,
    /// Workers that have not ended.
    pub active: AtomicUsize,
    /// Set when the run is over.
    pub stop: AtomicBool,
    failures: Mutex<BTreeMap<(&'static str, String), Failure>>,
}

/// Errors of one kind.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    /// How many.
    pub count: u64,
    /// What the first one said, with its path.
    pub first: String,
}

/// The totals at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    /// Bytes that reads returned.
    pub read: u64,
    /// Bytes that writes accepted.
    pub written: u64,
    /// Operations that succeeded.
    pub operations: u64,
    /// Operations that failed.
    pub errors: u64,
}

impl Counters {
    /// The totals now.
    pub(crate) fn totals(&self) -> Totals {
        Totals {
            read: self.read.load(Ordering::Relaxed),
            written: self.written.load(Ordering::Relaxed),
            operations: self.operations.load(Ordering::Relaxed),
            errors: self.errors.load(Ordering::Relaxed),
        }
    }

    /// Whether the run is over.
    pub(crate) fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Counts an operation that failed, and says so on stderr the first time.
    pub(crate) fn failed(&self, step: Step, path: &str, error: &io::Error) {
        self.errors.fetch_add(1, Ordering::Relaxed);
        let message = format!("{} {path}: {error}", step.name());
        let mut failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        failures
            .entry((step.name(), errno_name(error)))
            .and_modify(|failure| failure.count += 1)
            .or_insert_with(|| {
                eprintln!("justitia-load: {message}");
                Failure {
                    count: 1,
                    first: message,
                }
            });
    }

    /// The errors so far, by operation and errno.
    pub(crate) fn failures(&self) -> BTreeMap<(&'static str, String), Failure> {
        self.failures
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

impl Totals {
    /// What has come since `before`.
    #[must_use]
    pub(crate) fn since(self, before: Self) -> Self {
        Self {
            read: self.read - before.read,
            written: self.written - before.written,
            operations: self.operations - before.operations,
            errors: self.errors - before.errors,
        }
    }
}

/// One worker's latencies, by operation.
#[derive(Default)]
pub(crate) struct Timings(Mutex<BTreeMap<Step, Latencies>>);

impl Timings {
    /// Remembers how long an operation took.
    pub(crate) fn record(&self, step: Step, took: Duration) {
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        let mut timings = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(histogram) = histogram(&mut timings, step) {
            histogram.saturating_record(micros);
        }
    }

    /// Forgets what was recorded.
    pub(crate) fn clear(&self) {
        let mut timings = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        timings.clear();
    }

    /// Adds what was recorded to `all`.
    pub(crate) fn add_to(&self, all: &mut BTreeMap<Step, Latencies>) {
        let timings = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for (step, histogram_of_worker) in timings.iter() {
            if let Some(histogram) = histogram(all, *step) {
                // Cannot fail: both have the same bounds.
                let _ = histogram.add(histogram_of_worker);
            }
        }
    }
}

fn histogram(map: &mut BTreeMap<Step, Latencies>, step: Step) -> Option<&mut Latencies> {
    match map.entry(step) {
        Entry::Occupied(entry) => Some(entry.into_mut()),
        Entry::Vacant(entry) => Some(entry.insert(Latencies::new_with_bounds(1, LONGEST, 2).ok()?)),
    }
}

/// The symbol of the errors that a full or failing file system gives; else the number.
fn errno_name(error: &io::Error) -> String {
    let Some(code) = error.raw_os_error() else {
        return error.kind().to_string();
    };
    match code {
        libc::ENOSPC => "ENOSPC".into(),
        libc::EDQUOT => "EDQUOT".into(),
        libc::EIO => "EIO".into(),
        libc::EROFS => "EROFS".into(),
        libc::ENOENT => "ENOENT".into(),
        libc::EACCES => "EACCES".into(),
        libc::EMFILE => "EMFILE".into(),
        libc::ENOMEM => "ENOMEM".into(),
        other => format!("errno {other}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_counted_by_kind_and_keep_the_first_message() {
        let counters = Counters::default();
        let full = io::Error::from_raw_os_error(libc::ENOSPC);
        counters.failed(Step::Append, "a", &full);
        counters.failed(Step::Append, "b", &full);
        counters.failed(Step::Create, "c", &io::Error::from_raw_os_error(libc::EIO));
        let failures = counters.failures();
        let full = &failures[&("append", "ENOSPC".to_owned())];
        assert_eq!(full.count, 2);
        assert!(full.first.starts_with("append a: "), "{}", full.first);
        assert_eq!(failures[&("create", "EIO".to_owned())].count, 1);
        assert_eq!(counters.totals().errors, 3);
    }

    #[test]
    fn timings_of_several_workers_add_up() {
        let workers = [Timings::default(), Timings::default()];
        for (worker, micros) in workers.iter().zip([100, 900]) {
            for _ in 0..10 {
                worker.record(Step::Open, Duration::from_micros(micros));
            }
        }
        workers[0].record(Step::Fsync, Duration::from_secs(100_000));
        let mut all = BTreeMap::new();
        for worker in &workers {
            worker.add_to(&mut all);
        }
        assert_eq!(all[&Step::Open].len(), 20);
        assert!((100..=101).contains(&all[&Step::Open].value_at_quantile(0.5)));
        assert_eq!(all[&Step::Fsync].len(), 1);
    }
}
