//! Results of an experiment with two tenants and three configurations.

use std::collections::BTreeMap;

use super::super::schema::*;

pub(super) fn tenant(name: &str, weight: u64) -> Tenant {
    Tenant {
        name: name.into(),
        weight,
        above_share: false,
    }
}

pub(super) fn configuration(id: &str, label: &str) -> Configuration {
    Configuration {
        id: id.into(),
        label: label.into(),
        what: format!("what {label} does"),
    }
}

pub(super) fn metric(key: &str, unit: Unit, proportional: bool, total: Total) -> Metric {
    Metric {
        key: key.into(),
        label: format!("The {key}"),
        unit,
        proportional,
        total,
    }
}

/// A run of two tenants with these bandwidths.
pub(super) fn run(configuration: &str, repeat: u32, bandwidths: [f64; 2]) -> Run {
    let tenants = ["low", "high"].iter().zip(bandwidths);
    let tenants: Vec<_> = tenants
        .map(|(name, value)| TenantValues {
            name: (*name).into(),
            values: BTreeMap::from([("bandwidth".to_owned(), value)]),
        })
        .collect();
    let timeline = tenants
        .iter()
        .map(|tenant| Series {
            metric: "bandwidth".into(),
            tenant: tenant.name.clone(),
            points: vec![(0.0, 0.0), (1.0, tenant.values["bandwidth"])],
        })
        .collect();
    Run {
        configuration: configuration.into(),
        mglru: Some(true),
        repeat,
        outcome: Outcome::Measured,
        tenants,
        values: BTreeMap::new(),
        timeline,
        curves: vec![Curve {
            tenant: "low".into(),
            points: vec![(0.0, 1.0), (1e8, 0.25)],
        }],
    }
}

pub(super) fn failed(configuration: &str, repeat: u32, reason: &str, console: &str) -> Run {
    Run {
        outcome: Outcome::Failed {
            reason: reason.into(),
            console: console.into(),
        },
        tenants: Vec::new(),
        timeline: Vec::new(),
        ..run(configuration, repeat, [0.0, 0.0])
    }
}

pub(super) fn results() -> Results {
    Results {
        schema: VERSION,
        experiment: "writers".into(),
        title: "Two writers".into(),
        question: "Who gets what?".into(),
        paper: Some(Paper {
            title: "Justitia".into(),
            figure: "Fig. 4".into(),
            metric: None,
            results: vec![PaperResult {
                configuration: "conventional".into(),
                pv: Some(1.4),
                normalised: vec![1.0, 1.0],
                values: BTreeMap::new(),
                note: String::new(),
            }],
        }),
        machine: Machine {
            kernel: "6.12.0-test".into(),
            accelerator: "tcg".into(),
            cpu: "a processor".into(),
            vcpus: 4,
            memory_bytes: 1 << 30,
            disk: "a disk".into(),
        },
        date: "2026-01-31T12:00:00Z".into(),
        seed: 7,
        tenants: vec![tenant("low", 100), tenant("high", 300)],
        configurations: vec![
            configuration("conventional", "Conventional"),
            configuration("bfq", "BFQ weights"),
            configuration("justitia", "Justitia"),
        ],
        metrics: vec![
            metric("bandwidth", Unit::BytesPerSecond, true, Total::Sum),
            metric("anonymous", Unit::Bytes, false, Total::Whole),
        ],
        goals: goals(),
        runs: vec![
            run("justitia", 0, [10e6, 30e6]),
            run("conventional", 0, [20e6, 20e6]),
            run("conventional", 1, [22e6, 20e6]),
            run("justitia", 1, [10e6, 26e6]),
            run("justitia", 2, [10e6, 24e6]),
            failed("bfq", 0, "the guest panicked", "Kernel panic - not syncing"),
        ],
    }
}

fn goals() -> Vec<Goal> {
    vec![
        Goal {
            configuration: "justitia".into(),
            metric: "bandwidth".into(),
            measure: Measure::Pv,
            must: 0.5,
            stretch: Some(0.1),
        },
        Goal {
            configuration: "justitia".into(),
            metric: "bandwidth".into(),
            measure: Measure::TotalAgainst("conventional".into()),
            must: 0.98,
            stretch: None,
        },
        Goal {
            configuration: "justitia".into(),
            metric: "anonymous".into(),
            measure: Measure::Total,
            must: 0.0,
            stretch: None,
        },
    ]
}
