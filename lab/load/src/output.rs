//! The JSON lines on standard output. Sizes in bytes, times in seconds unless the name says so.

use std::collections::BTreeMap;
use std::io::{self, Write};

use serde::Serialize;

use crate::counters::{Counters, Latencies, Timings, Totals};
use crate::step::Step;

/// One line.
#[derive(Debug, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub(crate) enum Line {
    /// The run begins.
    Start {
        /// The personality.
        personality: &'static str,
        /// Workers.
        threads: u32,
        /// Files in the set, those that exist and those that do not.
        files: u32,
        /// Files that exist.
        existing: usize,
        /// The seed.
        seed: u64,
    },
    /// What happened since the line before.
    Interval {
        /// Since the run began.
        t: f64,
        /// Operations that succeeded.
        operations: u64,
        /// Bytes that reads returned.
        read_bytes: u64,
        /// Bytes that writes accepted.
        written_bytes: u64,
        /// Operations that failed.
        errors: u64,
    },
    /// The run is over.
    Final(Final),
}

/// The totals of a run.
#[derive(Debug, Serialize)]
pub(crate) struct Final {
    /// The personality.
    pub personality: &'static str,
    /// How long it ran.
    pub seconds: f64,
    /// Whether it was ended by a signal.
    pub interrupted: bool,
    /// Loops through the personality's steps that were completed.
    pub loops: u64,
    /// Operations that succeeded.
    pub operations: u64,
    /// Bytes that reads returned.
    pub read_bytes: u64,
    /// Bytes that writes accepted.
    pub written_bytes: u64,
    /// Operations that failed.
    pub errors: u64,
    /// By operation.
    pub by_operation: BTreeMap<&'static str, Operation>,
    /// What failed, by operation and errno.
    pub failures: Vec<FailureLine>,
}

/// One kind of operation.
#[derive(Debug, Serialize)]
pub(crate) struct Operation {
    /// How many succeeded.
    pub count: u64,
    /// Mean latency in microseconds.
    pub mean_us: f64,
    /// Median latency in microseconds.
    pub p50_us: u64,
    /// 99th percentile.
    pub p99_us: u64,
}

/// Errors of one kind.
#[derive(Debug, Serialize)]
pub(crate) struct FailureLine {
    /// The operation.
    pub operation: &'static str,
    /// The error's symbol.
    pub errno: String,
    /// How many.
    pub count: u64,
    /// What the first one said.
    pub first: String,
}

impl Line {
    /// Prints the line, and flushes: the reader waits for it.
    ///
    /// # Errors
    /// Standard output cannot be written.
    pub(crate) fn print(&self) -> io::Result<()> {
        let mut out = io::stdout().lock();
        serde_json::to_writer(&mut out, self)?;
        out.write_all(b"\n")?;
        out.flush()
    }

    /// The line for what happened between two moments.
    pub(crate) fn interval(t: f64, before: Totals, now: Totals) -> Self {
        let new = now.since(before);
        Self::Interval {
            t,
            operations: new.operations,
            read_bytes: new.read,
            written_bytes: new.written,
            errors: new.errors,
        }
    }
}

impl Operation {
    fn new(latencies: &Latencies) -> Self {
        Self {
            count: latencies.len(),
            mean_us: latencies.mean(),
            p50_us: latencies.value_at_quantile(0.5),
            p99_us: latencies.value_at_quantile(0.99),
        }
    }
}

/// The latencies of all workers together, by operation.
pub(crate) fn by_operation<'a>(
    timings: impl Iterator<Item = &'a Timings>,
) -> BTreeMap<&'static str, Operation> {
    let mut all: BTreeMap<Step, Latencies> = BTreeMap::new();
    for worker in timings {
        worker.add_to(&mut all);
    }
    all.iter()
        .map(|(step, latencies)| (step.name(), Operation::new(latencies)))
        .collect()
}

/// The errors so far.
pub(crate) fn failures(counters: &Counters) -> Vec<FailureLine> {
    counters
        .failures()
        .into_iter()
        .map(|((operation, errno), failure)| FailureLine {
            operation,
            errno,
            count: failure.count,
            first: failure.first,
        })
        .collect()
}
