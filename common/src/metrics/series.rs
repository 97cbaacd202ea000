//! Series of a snapshot: a family of each metric, with a value for each row of labels.

use std::sync::atomic::AtomicU64;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;

/// A metric: its name without prefix, unit and `_total`, its help, and its value.
pub type Metric<T> = (&'static str, &'static str, fn(&T) -> u64);

/// A table of metrics, each as `"name": |of| value, "help";`.
#[macro_export]
macro_rules! metric_table {
    ($($name:literal: $value:expr, $help:literal;)*) => {
        &[$(($name, $help, $value)),*]
    };
}

/// Labels: names, and values that are escaped ([`label`](super::label)).
pub type Labels = Vec<(&'static str, String)>;
/// A number that may fall.
pub type Level = Gauge<u64, AtomicU64>;

/// A number that may fall, for each row.
pub fn levels<T>(rows: &[(Labels, &T)], value: fn(&T) -> u64) -> Family<Labels, Level> {
    let family = Family::<Labels, Level>::default();
    for (labels, of) in rows {
        family.get_or_create(labels).set(value(of));
    }
    family
}

/// A number that only grows, for each row.
pub fn counts<T>(rows: &[(Labels, &T)], value: fn(&T) -> u64) -> Family<Labels, Counter> {
    let family = Family::<Labels, Counter>::default();
    for (labels, of) in rows {
        family.get_or_create(labels).inc_by(value(of));
    }
    family
}
