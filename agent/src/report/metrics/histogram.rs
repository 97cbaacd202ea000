//! Histograms that others have counted, as a metric. The library's own counts events one by one.

use justitia_api::LatencyHistogram;
use prometheus_client::encoding::{EncodeMetric, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;

use super::page::Labels;

/// A histogram for each set of labels.
#[derive(Debug)]
pub(super) struct Histograms(pub(super) Vec<(Labels, LatencyHistogram)>);

impl EncodeMetric for Histograms {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> Result<(), std::fmt::Error> {
        for (labels, histogram) in &self.0 {
            let buckets: Vec<(f64, u64)> = histogram
                .buckets
                .iter()
                .enumerate()
                .map(|(n, calls)| (LatencyHistogram::upper_bound(n).min(f64::MAX), *calls))
                .collect();
            let mut encoder = encoder.encode_family(labels)?;
            // `f64::MAX` is the encoder's `+Inf`.
            encoder.encode_histogram::<NoLabelSet>(
                histogram.sum,
                histogram.count(),
                &buckets,
                None,
            )?;
        }
        Ok(())
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Histogram
    }
}

#[cfg(test)]
mod tests {
    use justitia_api::{LatencyHistograms, Status, TenantStatus};

    use super::*;

    #[test]
    fn buckets_are_cumulative_and_the_last_is_infinite() {
        let read = LatencyHistogram {
            buckets: [4, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1],
            sum: 20.5,
        };
        let tenant = TenantStatus {
            path: "a".to_owned(),
            latency_histograms: Some(LatencyHistograms {
                read,
                ..LatencyHistograms::default()
            }),
            ..TenantStatus::default()
        };
        let status = Status {
            tenants: vec![tenant],
            ..Status::default()
        };
        let text = super::super::text(&status, 1).unwrap();
        let name = "justitia_tenant_io_latency_seconds";
        let kind = format!("# TYPE {name} histogram\n");
        assert!(text.contains(&kind), "{text}");
        let labels = "tenant=\"a\",operation=\"read\"";
        for (le, calls) in [
            ("0.000001024", 4),
            ("0.000262144", 4),
            ("0.001048576", 5),
            ("17.179869184", 5),
            ("+Inf", 6),
        ] {
            let bucket = format!("\n{name}_bucket{{le=\"{le}\",{labels}}} {calls}\n");
            assert!(text.contains(&bucket), "expected {bucket} in {text}");
        }
        for (part, value) in [("sum", "20.5"), ("count", "6")] {
            let series = format!("\n{name}_{part}{{{labels}}} {value}\n");
            assert!(text.contains(&series), "expected {series} in {text}");
        }
        let sync = "operation=\"sync\"";
        assert!(!text.contains(sync), "there was no sync: {text}");
    }
}
