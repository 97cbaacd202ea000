//! What a workload reports at its end.

use std::collections::BTreeMap;

use anyhow::{Context, Result};

/// What a workload says that it did.
#[derive(Clone, Debug, Default)]
pub(super) struct JobReport {
    /// Bytes read.
    pub read: u64,
    /// Bytes written.
    pub written: u64,
    /// Operations, of any kind.
    pub operations: u64,
    /// By operation, where it says so.
    pub latencies: BTreeMap<String, Latency>,
}

/// How long an operation took, in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Latency {
    /// The median.
    pub p50: f64,
    /// The 99th percentile.
    pub p99: f64,
}

/// The sums over fio's jobs. It may print notes before its document.
pub(super) fn fio(output: &str) -> Result<JobReport> {
    let document = output
        .get(output.find('{').unwrap_or(0)..)
        .unwrap_or_default();
    let document: serde_json::Value =
        serde_json::from_str(document).context("expected fio's JSON")?;
    let jobs = document
        .get("jobs")
        .and_then(serde_json::Value::as_array)
        .context("expected fio's jobs")?;
    let sum = |direction: &str, key: &str| -> u64 {
        jobs.iter()
            .filter_map(|job| job.get(direction)?.get(key)?.as_u64())
            .sum()
    };
    Ok(JobReport {
        read: sum("read", "io_bytes"),
        written: sum("write", "io_bytes"),
        operations: sum("read", "total_ios") + sum("write", "total_ios"),
        latencies: BTreeMap::new(),
    })
}

/// justitia-load's last line; nothing when it only prepared.
pub(super) fn load(output: &str) -> Result<JobReport> {
    for line in output.lines() {
        let line: serde_json::Value =
            serde_json::from_str(line).with_context(|| format!("expected JSON, found {line:?}"))?;
        if line.get("event").and_then(serde_json::Value::as_str) == Some("final") {
            let number = |key: &str| line.get(key).and_then(serde_json::Value::as_u64);
            return Ok(JobReport {
                read: number("read_bytes").context("expected read_bytes")?,
                written: number("written_bytes").context("expected written_bytes")?,
                operations: number("operations").context("expected operations")?,
                latencies: latencies(&line),
            });
        }
    }
    Ok(JobReport::default())
}

/// The operations of justitia-load's intervals so far. Its last line may not be complete.
pub(super) fn operations(output: &str) -> u64 {
    let of = |line: &str| -> Option<u64> {
        let line: serde_json::Value = serde_json::from_str(line).ok()?;
        (line.get("event")?.as_str()? == "interval").then(|| line.get("operations")?.as_u64())?
    };
    output.lines().filter_map(of).sum()
}

fn latencies(last: &serde_json::Value) -> BTreeMap<String, Latency> {
    let operations = last
        .get("by_operation")
        .and_then(serde_json::Value::as_object);
    operations
        .into_iter()
        .flatten()
        .filter_map(|(name, operation)| {
            let seconds = |key: &str| Some(operation.get(key)?.as_f64()? / 1e6);
            let latency = Latency {
                p50: seconds("p50_us")?,
                p99: seconds("p99_us")?,
            };
            Some((name.clone(), latency))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bytes_and_operations_of_all_jobs_are_summed() {
        let output = "note: something\n{\"jobs\":[{\"read\":{\"io_bytes\":5,\"total_ios\":1},\"write\":{\"io_bytes\":7,\"total_ios\":2}},{\"read\":{\"io_bytes\":1,\"total_ios\":1}}]}";
        let report = fio(output).unwrap();
        assert_eq!((report.read, report.written, report.operations), (6, 7, 4));
        let output = "{\"event\":\"start\"}\n{\"event\":\"final\",\"read_bytes\":3,\"written_bytes\":4,\"operations\":2,\"by_operation\":{\"fsync\":{\"p50_us\":1500,\"p99_us\":250000}}}\n";
        let report = load(output).unwrap();
        assert_eq!((report.read, report.written, report.operations), (3, 4, 2));
        let fsync = Latency {
            p50: 0.0015,
            p99: 0.25,
        };
        assert_eq!(report.latencies.get("fsync"), Some(&fsync));
        let intervals = "{\"event\":\"start\"}\n{\"event\":\"interval\",\"operations\":5}\n{\"event\":\"interval\",\"operations\":6}\n{\"event\":\"inter";
        assert_eq!(operations(intervals), 11);
        assert!(fio("fio: bad option").is_err());
        assert!(load("Killed").is_err());
    }
}
