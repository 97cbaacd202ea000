//! What a tenant's applications get.

use serde::{Deserialize, Serialize};

/// What a tenant's applications get; for an inner node, the sums of its leaves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct AppStatus {
    /// Bytes read from regular files since the probes were attached.
    pub read_bytes: u64,
    /// Bytes written.
    pub write_bytes: u64,
    /// Read operations.
    pub reads: u64,
    /// Write operations.
    pub writes: u64,
    /// Bytes read through the page cache.
    pub cache_read_bytes: u64,
    /// Bytes that a device had to deliver into the page cache.
    pub cache_miss_bytes: u64,
    /// Reads and faults that found their first page absent.
    pub misses: u64,
    /// Seconds that its requests were held back by `io.max`, summed over them.
    #[serde(default)]
    pub io_throttled: f64,
    /// Seconds that its writers were held back until dirty pages had been written.
    #[serde(default)]
    pub dirty_throttled: f64,
    /// Bytes read per second, over the window.
    pub read_rate: f64,
    /// Bytes written per second.
    pub write_rate: f64,
    /// The misses, per second.
    pub miss_rate: f64,
    /// The part of the bytes read through the page cache that was found there, 0 to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hit_ratio: Option<f64>,
    /// The part of the time in which its tasks were stalled on I/O, 0 to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub io_stalled: Option<f64>,
}
