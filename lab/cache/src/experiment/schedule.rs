//! What happens when in a run, and what is noted meanwhile.

use super::container::Counts;
use super::error::ExperimentError;
use super::settle::{Settling, Target};
use super::spec::{Division, Event};
use super::world::World;
use justitia_share::num::to_f64;
use std::time::Duration;

/// Samples of what containers hold, in a run.
const SAMPLES: u64 = 400;

/// What happens.
enum Action<'a> {
    Start(usize),
    Stop(usize),
    Change(&'a Event),
    Measure,
    Sample,
}

/// What happens in a run, and what was noted of it.
pub(super) struct Schedule<'a> {
    actions: Vec<(u64, Action<'a>)>,
    next: usize,
    /// When the run ends, nanoseconds.
    pub(super) end: u64,
    pub(super) record: Record,
}

/// What was noted.
#[derive(Default)]
pub(super) struct Record {
    /// When, seconds, and what each container held.
    pub(super) samples: Vec<(f64, Vec<[u64; 2]>)>,
    /// As the measurement began.
    pub(super) begin: (Vec<Counts>, Vec<[u64; 2]>),
    pub(super) settlings: Vec<Settling>,
}

impl<'a> Schedule<'a> {
    pub(super) fn new(world: &World<'a>) -> Self {
        let experiment = world.experiment;
        let mut actions = Vec::new();
        let mut at = |seconds: f64, action| actions.push((experiment.nanos(seconds), action));
        for (number, tenant) in world.tenants.iter().enumerate() {
            at(tenant.start, Action::Start(number));
            if let Some(stop) = tenant.spec.stop {
                at(stop, Action::Stop(number));
            }
        }
        if world.configuration.events {
            for event in &experiment.event {
                at(event.at, Action::Change(event));
            }
        }
        at(experiment.measure_from, Action::Measure);
        for sample in 0..=SAMPLES {
            let part = to_f64(sample) / to_f64(SAMPLES);
            at(experiment.seconds * part, Action::Sample);
        }
        // In the order in which they are listed, where the time is the same.
        actions.sort_by_key(|(at, _)| *at);
        Self {
            actions,
            next: 0,
            end: experiment.nanos(experiment.seconds),
            record: Record::default(),
        }
    }

    /// When something happens next; `None` when nothing does.
    pub(super) fn due(&self) -> Option<u64> {
        self.actions.get(self.next).map(|(at, _)| *at)
    }

    /// Does what is next. Returns the container that has started.
    pub(super) fn act(&mut self, world: &World<'_>) -> Result<Option<usize>, ExperimentError> {
        let Some((at, action)) = self.actions.get(self.next) else {
            return Ok(None);
        };
        self.next += 1;
        let seconds = Duration::from_nanos(*at).as_secs_f64() * world.experiment.time_scale();
        match action {
            Action::Start(number) => {
                world.start(*number)?;
                return Ok(Some(*number));
            }
            Action::Stop(number) => world.stop(*number)?,
            Action::Change(event) => {
                world.change(event)?;
                if event.settles && world.configuration.cache == Division::Pools {
                    let targets = Target::of(world);
                    self.record.settlings.push(Settling::new(seconds, targets));
                }
            }
            Action::Measure => self.record.begin = (world.counts(), world.occupancy()),
            Action::Sample => self.record.samples.push((seconds, world.occupancy())),
        }
        Ok(None)
    }
}
