//! One run of an experiment: one configuration, from the empty disk to the measurements.

use std::time::Instant;

use anyhow::{Context, Result};

use super::agent::{Agent, AgentMode};
use super::app_counters;
use super::host::RequestContext;
use super::run::Run;
use super::scale;
use super::setup;
use super::timeline::TimelineSampler;
use crate::experiment::{AgentChange, Experiment, Phase};
use crate::protocol::{Measurements, RunRequest};

/// Carries out a run.
pub(super) fn execute(request: &RunRequest, context: &RequestContext) -> Result<Measurements> {
    let mglru = setup::mglru(request.mglru)?;
    let experiment = &request.experiment;
    let mut measurements = if let Some(scale) = &experiment.scale {
        scale::measure(scale, request, context)?
    } else {
        phases(request, context)?
    };
    measurements.mglru = mglru;
    Ok(measurements)
}

/// Sets the tenants up, and goes through the phases.
fn phases(request: &RunRequest, context: &RequestContext) -> Result<Measurements> {
    let experiment = &request.experiment;
    let tenants = setup::set_up(experiment, &request.configuration)?;
    let mode = AgentMode::from(&request.configuration);
    let runs = (experiment.probes || mode != AgentMode::Observe) && !starts_later(experiment);
    let agent = runs.then(|| Agent::start(mode)).transpose()?;
    let begin = Instant::now();
    let named = tenants.iter().map(|t| (t.name.clone(), t.cgroup.clone()));
    let timeline = experiment
        .probes
        .then(|| TimelineSampler::start(named, begin));
    let mut run = Run::new(request, context, &tenants, agent)?;
    run.start_background()?;
    for phase in &experiment.phase {
        context.progress(phase.to_string())?;
        run.phase(phase).with_context(|| format!("while {phase}"))?;
        run.check()?;
    }
    let mut measurements = run.measurements();
    let timeline_begin = run.timeline_begin().unwrap_or(begin);
    if experiment.probes {
        // While the tenants still run.
        measurements.curves = app_counters::curves()?;
    }
    let agent = run.end();
    if let Some(timeline) = timeline {
        measurements.timeline = timeline.finish(timeline_begin)?;
    }
    agent.map_or(Ok(()), Agent::stop)?;
    Ok(measurements)
}

/// Whether a phase starts the agent.
fn starts_later(experiment: &Experiment) -> bool {
    experiment.phase.iter().any(|phase| match phase {
        Phase::Measure(measure) => measure.agent == Some(AgentChange::Start),
        _ => false,
    })
}
