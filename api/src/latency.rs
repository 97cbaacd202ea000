//! How long calls of applications took.

use serde::{Deserialize, Serialize};

/// How long calls took in the last whole window: upper bounds, seconds; `None` where there were none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LatencyStatus {
    /// Half of the reads took at most this.
    pub read_p50: Option<f64>,
    /// 99 of 100 reads.
    pub read_p99: Option<f64>,
    /// Half of the writes.
    pub write_p50: Option<f64>,
    /// 99 of 100 writes.
    pub write_p99: Option<f64>,
    /// 99 of 100 of `fsync` and its kin.
    pub sync_p99: Option<f64>,
}

/// How long all calls took since the probes were attached; for an inner node, the sums of its leaves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LatencyHistograms {
    /// `read`, `pread` and their vectored kin.
    #[serde(skip_serializing_if = "LatencyHistogram::is_empty")]
    pub read: LatencyHistogram,
    /// `write`, `pwrite` and their vectored kin.
    #[serde(skip_serializing_if = "LatencyHistogram::is_empty")]
    pub write: LatencyHistogram,
    /// `fsync`, `fdatasync`, `msync`, and writes that ask for it.
    #[serde(skip_serializing_if = "LatencyHistogram::is_empty")]
    pub sync: LatencyHistogram,
}

impl LatencyHistograms {
    /// Adds what another tenant's calls took.
    pub fn add(&mut self, other: &Self) {
        self.read.add(&other.read);
        self.write.add(&other.write);
        self.sync.add(&other.sync);
    }
}

/// Calls by how long they took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LatencyHistogram {
    /// The number of calls in each bucket: what took less than its [upper bound](Self::upper_bound) and is in none before.
    pub buckets: [u64; Self::BUCKETS],
    /// Seconds, all calls together.
    pub sum: f64,
}

impl LatencyHistogram {
    /// How many buckets there are.
    pub const BUCKETS: usize = 14;

    /// A bucket's upper bound, seconds; infinite for the last. The first is 1.024 µs, each next four times the one before,
    /// up to 17 s: finer ones would make a tenant's series too many.
    #[must_use]
    pub fn upper_bound(bucket: usize) -> f64 {
        if bucket + 1 >= Self::BUCKETS {
            return f64::INFINITY;
        }
        let exponent = i32::try_from(bucket).unwrap_or(i32::MAX);
        1.024e-6 * 4_f64.powi(exponent)
    }

    /// The number of calls.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// Whether there were no calls.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count() == 0
    }

    fn add(&mut self, other: &Self) {
        for (sum, more) in self.buckets.iter_mut().zip(other.buckets) {
            *sum += more;
        }
        self.sum += other.sum;
    }
}
