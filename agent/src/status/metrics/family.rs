//! A metric of the table, and how its samples are registered.

use std::sync::atomic::AtomicU64;

use justitia_api::{AppStatus, Status, TenantStatus};
use justitia_common::metrics::label;
use prometheus_client::metrics::TypedMetric;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry;
use prometheus_client::registry::Registry;

/// The kind of a metric's samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A level that goes up and down.
    Gauge,
    /// A sum that only grows while the agent runs.
    Counter,
}

/// The unit of a metric; it ends its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unit {
    /// A number, a ratio, a flag.
    Number,
    Bytes,
    Seconds,
}

/// A sample's value. All samples of a metric have the same kind of number.
#[derive(Clone, Copy, Debug)]
pub(super) enum Value {
    Whole(u64),
    Float(f64),
}

/// A sample: the values of the metric's labels except `tenant`, and its value.
pub(super) type LabelledValue = (Vec<String>, Value);

/// The source of the samples.
pub(super) enum Source {
    /// One sample of the agent.
    Agent(fn(&Page<'_>) -> Option<Value>),
    /// Samples of the agent, by labels.
    AgentBy(&'static [&'static str], fn(&Page<'_>) -> Vec<LabelledValue>),
    /// One sample for each tenant.
    Tenant(fn(&TenantStatus) -> Option<Value>),
    /// One sample for each tenant whose applications the probes see.
    App(fn(&AppStatus) -> Value),
    /// Samples of each tenant, by labels.
    TenantBy(
        &'static [&'static str],
        fn(&TenantStatus) -> Vec<LabelledValue>,
    ),
}

/// A row of the table.
pub(super) struct Metric {
    /// Its name without prefix, unit and `_total`.
    pub name: &'static str,
    pub kind: Kind,
    pub unit: Unit,
    pub help: &'static str,
    pub source: Source,
}

impl Metric {
    /// Its name in a sample.
    pub(super) fn full_name(&self) -> String {
        let unit = match self.unit {
            Unit::Number => "",
            Unit::Bytes => "_bytes",
            Unit::Seconds => "_seconds",
        };
        let total = match self.kind {
            Kind::Gauge => "",
            Kind::Counter => "_total",
        };
        format!("justitia_{}{unit}{total}", self.name)
    }

    /// The names of its labels.
    pub(super) fn labels(&self) -> Vec<&'static str> {
        match &self.source {
            Source::Agent(_) => Vec::new(),
            Source::AgentBy(names, _) => names.to_vec(),
            Source::Tenant(_) | Source::App(_) => vec!["tenant"],
            Source::TenantBy(names, _) => [&["tenant"], *names].concat(),
        }
    }

    /// Adds its samples to `registry`; without samples the metric is absent.
    pub(super) fn register(&self, page: &Page<'_>, registry: &mut Registry) {
        let samples = self.samples(page);
        match (self.kind, samples.first().map(|(_, value)| value)) {
            (_, None) => {}
            (Kind::Gauge, Some(Value::Whole(_))) => {
                let set =
                    |gauge: &Gauge<u64, AtomicU64>, value: Value| _ = gauge.set(value.whole());
                self.fill(&samples, set, registry);
            }
            (Kind::Gauge, Some(Value::Float(_))) => {
                let set =
                    |gauge: &Gauge<f64, AtomicU64>, value: Value| _ = gauge.set(value.float());
                self.fill(&samples, set, registry);
            }
            (Kind::Counter, Some(Value::Whole(_))) => {
                let add = |counter: &Counter, value: Value| _ = counter.inc_by(value.whole());
                self.fill(&samples, add, registry);
            }
            (Kind::Counter, Some(Value::Float(_))) => {
                let add = |counter: &Counter<f64, AtomicU64>, value: Value| {
                    counter.inc_by(value.float().max(0.0));
                };
                self.fill(&samples, add, registry);
            }
        }
    }

    /// Registers `samples` as metrics of the type `M`, which `set` gives their values.
    fn fill<M>(&self, samples: &[(Labels, Value)], set: fn(&M, Value), registry: &mut Registry)
    where
        M: registry::Metric + TypedMetric + Clone + Default,
    {
        if let [(labels, value)] = samples
            && labels.is_empty()
        {
            let metric = M::default();
            set(&metric, *value);
            self.add(metric, registry);
            return;
        }
        let family = Family::<Labels, M>::default();
        for (labels, value) in samples {
            set(&family.get_or_create(labels), *value);
        }
        self.add(family, registry);
    }

    fn add(&self, family: impl registry::Metric, registry: &mut Registry) {
        match self.unit {
            Unit::Number => registry.register(self.name, self.help, family),
            Unit::Bytes => {
                registry.register_with_unit(self.name, self.help, registry::Unit::Bytes, family)
            }
            Unit::Seconds => {
                registry.register_with_unit(self.name, self.help, registry::Unit::Seconds, family)
            }
        }
    }

    fn samples(&self, page: &Page<'_>) -> Vec<(Labels, Value)> {
        let tenants = page.tenants.iter();
        let of = |tenant: &TenantStatus, value| (vec![("tenant", label(&tenant.path))], value);
        match &self.source {
            Source::Agent(value) => value(page).map(|v| (Vec::new(), v)).into_iter().collect(),
            Source::AgentBy(names, samples) => {
                let samples = samples(page).into_iter();
                samples
                    .map(|(values, v)| (zip(names, &values), v))
                    .collect()
            }
            Source::Tenant(value) => tenants.filter_map(|t| Some(of(t, value(t)?))).collect(),
            Source::App(value) => tenants
                .filter_map(|t| Some(of(t, value(t.app.as_ref()?))))
                .collect(),
            Source::TenantBy(names, samples) => tenants
                .flat_map(|tenant| {
                    samples(tenant).into_iter().map(move |(values, value)| {
                        let (mut labels, value) = of(tenant, value);
                        labels.extend(zip(names, &values));
                        (labels, value)
                    })
                })
                .collect(),
        }
    }
}

fn zip(names: &[&'static str], values: &[String]) -> Labels {
    let values = values.iter().map(|value| label(value));
    names.iter().copied().zip(values).collect()
}

impl Value {
    const fn whole(self) -> u64 {
        match self {
            Self::Whole(number) => number,
            Self::Float(_) => 0,
        }
    }

    fn float(self) -> f64 {
        match self {
            Self::Whole(number) => justitia_share::num::to_f64(number),
            Self::Float(number) => number,
        }
    }
}

pub(super) struct Page<'a> {
    pub status: &'a Status,
    /// The tenants with series of their own.
    pub tenants: &'a [TenantStatus],
}

/// The labels of a sample, by their names.
pub(super) type Labels = Vec<(&'static str, String)>;
