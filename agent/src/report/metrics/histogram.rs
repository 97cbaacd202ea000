//! Histograms that others have counted, as a metric. The library's own counts events one by one.

use justitia_api::LatencyHistogram;
use prometheus_client::encoding::{EncodeMetric, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;

use super::family::Labels;

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
