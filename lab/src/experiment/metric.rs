//! What an experiment measures.

use serde::{Deserialize, Serialize};

use crate::report::schema::{Metric, Total, Unit};

/// What is measured: a quantity that the lab knows, or one that a phase records under a name of
/// its own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(
    untagged,
    expecting = "expected the name of a metric, or a table that describes one in full, found neither"
)]
pub enum MetricName {
    /// `bandwidth`, `pages`, `hit_ratio`, `device` …
    Known(String),
    /// Described in full.
    Own(Metric),
}

impl MetricName {
    /// The names that the lab knows.
    pub(super) fn known() -> impl Iterator<Item = &'static str> {
        KNOWN.iter().map(|(key, ..)| *key)
    }

    /// Its description; `None` for an unknown name.
    #[must_use]
    pub fn describe(&self) -> Option<Metric> {
        match self {
            Self::Known(key) => known(key),
            Self::Own(metric) => Some(metric.clone()),
        }
    }
}

/// Key, label, unit, whether it ought to follow the weights, and what the tenants' values make together.
type Known = (&'static str, &'static str, Unit, bool, Total);

macro_rules! metrics {
    ($($key:literal: $label:literal, $unit:ident, $proportional:literal, $total:ident;)*) => {
        [$(($key, $label, Unit::$unit, $proportional, Total::$total)),*]
    };
}

const KNOWN: [Known; 22] = metrics! {
    "bandwidth": "Application bandwidth", BytesPerSecond, true, Sum;
    "pages": "File pages kept", Bytes, true, Sum;
    "hit_ratio": "Hit ratio", Ratio, false, Mean;
    "overall_hit_ratio": "Hit ratio of all together", Ratio, false, Whole;
    "device": "Device bandwidth", BytesPerSecond, true, Sum;
    "disk_part": "Part of the disk's time", Ratio, true, Sum;
    "operations": "Operations", PerSecond, true, Sum;
    "reads": "Read by applications", Bytes, false, Sum;
    "swapped": "In swap", Bytes, false, Sum;
    "hits": "Hits", Ratio, false, Mean;
    "disk_reads": "Read from the disk", Bytes, false, Whole;
    "processor": "Processors busy", Ratio, false, Whole;
    "disk": "Disk busy", Ratio, false, Whole;
    "agent": "Agent's CPU, of a processor", Ratio, false, Whole;
    "memory_stall": "Stalled for memory (PSI full)", Seconds, false, Whole;
    "misallocated": "Misallocated bandwidth", Ratio, false, Whole;
    "pv_sampled": "PV among the tenants that do I/O", Count, false, Whole;
    "agent_cpu": "Agent's CPU, quiet", Ratio, false, Mean;
    "agent_cpu_contended": "Agent's CPU, some contend for the disk", Ratio, false, Mean;
    "agent_cpu_pressure": "Agent's CPU, under pressure", Ratio, false, Mean;
    "agent_loop_pressure": "The same, without the kernel's work of reclaiming", Ratio, false, Mean;
    "agent_memory": "Agent's memory", Bytes, false, Mean;
};

fn known(key: &str) -> Option<Metric> {
    all_known().find(|known| known.key == key)
}

/// Every quantity that the lab knows.
pub(super) fn all_known() -> impl Iterator<Item = Metric> {
    let described = |(key, label, unit, proportional, total): Known| Metric {
        key: key.to_owned(),
        label: label.to_owned(),
        unit,
        proportional,
        total,
    };
    KNOWN.into_iter().map(described)
}
