//! The phases, against what else the definition has.

use super::super::definition::{Experiment, Workload};
use super::super::phase::{OUTSIDER, Phase, RecordPhase, RunPhase};
use super::super::source::Place;
use super::problem::{Problem, problem};
use super::tenants;
use crate::report::schema::{Metric, Total};
use justitia_common::toml_file::none_of;

pub(super) fn phases(experiment: &Experiment) -> Result<(), Problem> {
    if experiment.phase.is_empty() {
        return problem(
            Place::top("phase"),
            "expected at least one phase, found none",
        );
    }
    for (index, phase) in experiment.phase.iter().enumerate() {
        let place = || Place::Item("phase", index);
        names(experiment, phase, &place)?;
        match phase {
            Phase::Run(run) => running(experiment, run, &place)?,
            Phase::Record(RecordPhase { key }) => {
                if !experiment.metrics().iter().any(|metric| metric.key == *key) {
                    let metrics = experiment.metrics();
                    let known = metrics.iter().map(|metric| metric.key.as_str());
                    let what = none_of("a metric of this experiment", key, known);
                    return problem(place(), what);
                }
            }
            Phase::Sample(_) if !experiment.probes => {
                return problem(
                    place(),
                    "expected probes, by which the split is sampled, found probes = false",
                );
            }
            Phase::Sample(sample) => {
                if let Some(key) = &sample.key {
                    whole_metric(experiment, key, place())?;
                }
            }
            Phase::Weights(weights) => {
                for weight in weights.to.values() {
                    tenants::weight(*weight, place())?;
                }
            }
            Phase::Sync
            | Phase::Wait(_)
            | Phase::Measure(_)
            | Phase::Stop(_)
            | Phase::Renew(_)
            | Phase::Disk(_) => {}
        }
    }
    Ok(())
}

/// The tenants that a phase names.
fn names(experiment: &Experiment, phase: &Phase, place: &dyn Fn() -> Place) -> Result<(), Problem> {
    let named: Vec<&String> = match phase {
        Phase::Run(run) => run.tenants.iter().collect(),
        Phase::Stop(stop) | Phase::Renew(stop) => stop.tenants.iter().collect(),
        Phase::Weights(weights) => weights.to.keys().collect(),
        _ => Vec::new(),
    };
    let outsider_allowed = !matches!(phase, Phase::Weights(_) | Phase::Renew(_));
    let known = |name: &str| {
        experiment.tenant.iter().any(|tenant| tenant.name == name)
            || (name == OUTSIDER && outsider_allowed)
    };
    match named.into_iter().find(|name| !known(name)) {
        None => Ok(()),
        Some(name) => {
            let tenants = experiment.tenant.iter().map(|tenant| tenant.name.as_str());
            let outsider = outsider_allowed.then_some(OUTSIDER);
            problem(place(), none_of("a tenant", name, tenants.chain(outsider)))
        }
    }
}

fn running(
    experiment: &Experiment,
    run: &RunPhase,
    place: &dyn Fn() -> Place,
) -> Result<(), Problem> {
    let name = &run.workload;
    tenants::workload(experiment, name, place())?;
    if let Some(key) = &run.key {
        whole_metric(experiment, key, place())?;
        if !run.measured || run.background {
            return problem(
                place(),
                format!("expected measured = true and no background for as = {key:?}"),
            );
        }
    }
    if run.seconds.is_some() {
        return Ok(());
    }
    if run.background && run.measured {
        return problem(
            place(),
            "expected seconds for what is measured in the background, found none",
        );
    }
    let workload = experiment.workload.get(name);
    if workload.is_some_and(Workload::uses_seconds) {
        return problem(
            place(),
            format!("expected seconds, which workload {name:?} uses, found none"),
        );
    }
    Ok(())
}

/// A key under which a phase records something of the run as a whole, or with which the keys begin of what it records.
fn whole_metric(experiment: &Experiment, key: &str, place: Place) -> Result<(), Problem> {
    let metrics = experiment.metrics();
    let whole = |metric: &&Metric| metric.total == Total::Whole;
    let under = |metric: &Metric| match metric.key.strip_prefix(key) {
        Some(rest) => rest.is_empty() || rest.starts_with('_'),
        None => false,
    };
    if metrics.iter().filter(whole).any(under) {
        return Ok(());
    }
    problem(
        place,
        format!("expected a metric of this experiment whose total is \"whole\", found {key:?}"),
    )
}
