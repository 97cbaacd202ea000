//! What is compared and measured.

use std::collections::BTreeSet;

use super::super::configuration::Configuration;
use super::super::definition::Experiment;
use super::super::metric::MetricName;
use super::super::source::Place;
use super::problem::{Problem, problem};
use justitia_common::toml_file::{did_you_mean, none_of};

pub(super) fn configurations(experiment: &Experiment) -> Result<(), Problem> {
    let place = || Place::top("configurations");
    if experiment.configurations.is_empty() {
        return problem(place(), "expected at least one configuration, found none");
    }
    for id in &experiment.configurations {
        if let Err(what) = Configuration::find(id) {
            return problem(place(), what);
        }
    }
    if experiment.repeat == 0 {
        return problem(Place::top("repeat"), "expected at least 1, found 0");
    }
    Ok(())
}

pub(super) fn metrics(experiment: &Experiment) -> Result<(), Problem> {
    let place = || Place::top("metric");
    if experiment.metric.is_empty() {
        return problem(place(), "expected at least one metric, found none");
    }
    match experiment
        .metric
        .iter()
        .find(|name| name.describe().is_none())
    {
        None => Ok(()),
        Some(name) => {
            let (name, meant) = match name {
                MetricName::Known(name) => (name.as_str(), did_you_mean(name, MetricName::known())),
                MetricName::Own(metric) => (metric.key.as_str(), String::new()),
            };
            problem(
                place(),
                format!(
                    "expected a metric that the lab knows, or one described in full, found {name:?}{meant}"
                ),
            )
        }
    }
}

pub(super) fn goals(experiment: &Experiment) -> Result<(), Problem> {
    let metrics = experiment.metrics();
    let keys: BTreeSet<&str> = metrics.iter().map(|metric| metric.key.as_str()).collect();
    for (index, goal) in experiment.goal.iter().enumerate() {
        let place = || Place::Item("goal", index);
        if !keys.contains(goal.metric.as_str()) {
            return problem(
                place(),
                none_of(
                    "a metric of this experiment",
                    &goal.metric,
                    keys.iter().copied(),
                ),
            );
        }
        if let Err(what) = Configuration::find(&goal.configuration) {
            return problem(place(), what);
        }
    }
    Ok(())
}
