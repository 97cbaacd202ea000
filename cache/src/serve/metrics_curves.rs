//! The series of pools' miss-ratio curves.

use crate::cache::PoolStats;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use std::sync::atomic::AtomicU64;

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Sized {
    vm: String,
    pool: String,
    size: &'static str,
}

/// Three series for each pool with a curve. `pools` are labels of the VM and of the pool, and the pool.
pub(super) fn curves<'a>(
    pools: impl Iterator<Item = (&'a str, &'a str, &'a PoolStats)>,
    registry: &mut Registry,
) {
    let misses = Family::<Sized, Gauge<f64, AtomicU64>>::default();
    for (vm, name, pool) in pools {
        let Some(curve) = &pool.curve else { continue };
        let holds = pool.memory_bytes + pool.ssd_bytes;
        for (size, bytes) in [
            ("half", holds / 2),
            ("same", holds),
            ("twice", holds.saturating_mul(2)),
        ] {
            let label = Sized {
                vm: vm.to_owned(),
                pool: name.to_owned(),
                size,
            };
            misses.get_or_create(&label).set(curve.miss_ratio(bytes));
        }
    }
    registry.register(
        "pool_predicted_miss_ratio",
        "The part of its gets that a pool would miss if it held half, the same or twice what it holds now",
        misses,
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::PoolId;
    use justitia_api::CurveStatus;

    #[test]
    fn a_pool_with_a_curve_has_three_series_and_one_without_has_none() {
        let pool = |curve| PoolStats {
            id: PoolId {
                index: 0,
                generation: 0,
            },
            name: String::new(),
            memory_weight: 100,
            ssd_weight: 0,
            memory_entitlement_bytes: 0,
            ssd_entitlement_bytes: 0,
            memory_bytes: 30,
            ssd_bytes: 10,
            ssd_admits: crate::worth::SsdAdmission::All,
            counts: crate::cache::Counts::default(),
            curve,
        };
        let curve = CurveStatus {
            accesses: 1.0,
            points: vec![(0, 1.0), (80, 0.0)],
        };
        let (known, unknown) = (pool(Some(curve)), pool(None));
        let rows = [("v", "a", &known), ("v", "b", &unknown)];
        let mut registry = Registry::default();
        curves(rows.into_iter(), &mut registry);
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        for (size, ratio) in [("half", "0.75"), ("same", "0.5"), ("twice", "0.0")] {
            let line =
                format!("pool_predicted_miss_ratio{{vm=\"v\",pool=\"a\",size=\"{size}\"}} {ratio}");
            assert!(text.contains(&line), "{line} is not in {text}");
        }
        assert!(!text.contains("pool=\"b\""), "{text}");
    }
}
