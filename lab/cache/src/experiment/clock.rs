//! The two clocks of a run.

use super::cost::Cost;
use super::error::ExperimentError;
use super::schedule::{Record, Schedule};
use super::workload::{Place, Workload};
use super::world::{Tenant, World};
use justitia_cache::lab::clock;
use serde::Serialize;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::{Duration, Instant};

/// Sleeps shorter than this are put off: the kernel wakes that much later.
const SHORTEST: Duration = Duration::from_micros(200);

/// How time passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Clock {
    /// Each thread of the model has a clock of its own, to which what it waits for is added, and for the code a fixed time
    /// that was measured. The thread whose clock is behind goes next. No processor is short.
    Virtual,
    /// Threads that sleep.
    Real,
}

impl Clock {
    pub(super) fn run(self, world: &World<'_>) -> Result<Record, ExperimentError> {
        let schedule = Schedule::new(world);
        match self {
            Self::Virtual => run_virtual(world, schedule),
            Self::Real => run_real(world, schedule),
        }
    }
}

/// A step of a thread, and what it costs.
fn step(tenant: &Tenant<'_>, place: &mut Place) -> Cost {
    let (workload, container) = &mut *tenant.state.lock();
    let cost = workload.step(place, container);
    container.counts.operations += 1;
    container.counts.bytes += cost.bytes;
    cost
}

fn took(tenant: &Tenant<'_>, time: Duration) {
    tenant.state.lock().1.counts.time += time;
}

fn run_virtual(world: &World<'_>, mut schedule: Schedule<'_>) -> Result<Record, ExperimentError> {
    // The clock of each thread, its container, its number there.
    let mut threads = BinaryHeap::new();
    let mut places = Vec::new();
    loop {
        let next = threads.peek().map(|Reverse((at, _, _))| *at);
        let now = next.unwrap_or(u64::MAX);
        if let Some(due) = schedule.due().filter(|due| *due <= now) {
            if let Some(number) = schedule.act(world)? {
                let of = world
                    .tenants
                    .get(number)
                    .map_or(0, |t| Workload::threads(t.spec));
                for thread in 0..of {
                    threads.push(Reverse((due, number, places.len())));
                    places.push(Place::new(thread, of));
                }
            }
            continue;
        }
        let Some(Reverse((at, number, place))) = threads.pop() else {
            break;
        };
        let tenant = world.tenants.get(number).filter(|t| t.is_active());
        let (Some(tenant), Some(at_place)) = (tenant, places.get_mut(place)) else {
            continue;
        };
        if at >= schedule.end {
            continue;
        }
        clock::set(Duration::from_nanos(at));
        let cost = step(tenant, at_place);
        let time = cost.waited + cost.spent;
        took(tenant, time);
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX).max(1);
        threads.push(Reverse((at.saturating_add(nanos), number, place)));
    }
    Ok(schedule.record)
}

fn run_real(world: &World<'_>, mut schedule: Schedule<'_>) -> Result<Record, ExperimentError> {
    let begin = Instant::now();
    let end = begin + Duration::from_nanos(schedule.end);
    std::thread::scope(|scope| {
        while let Some(due) = schedule.due() {
            sleep_until(begin + Duration::from_nanos(due));
            let Some(number) = schedule.act(world)? else {
                continue;
            };
            let Some(tenant) = world.tenants.get(number) else {
                continue;
            };
            let of = Workload::threads(tenant.spec);
            for thread in 0..of {
                scope.spawn(move || work(tenant, Place::new(thread, of), end));
            }
        }
        Ok(schedule.record)
    })
}

/// A thread that sleeps for what it waits for.
fn work(tenant: &Tenant<'_>, mut place: Place, end: Instant) {
    let mut clock = Instant::now();
    while clock < end && tenant.is_active() {
        let begin = Instant::now().max(clock);
        justitia_cache::lab::clock::reset();
        let cost = step(tenant, &mut place);
        clock = begin + cost.waited;
        let now = Instant::now();
        took(tenant, now.max(clock) - begin);
        if clock > now + SHORTEST {
            sleep_until(clock.min(end));
        }
    }
}

fn sleep_until(at: Instant) {
    let left = at.saturating_duration_since(Instant::now());
    if !left.is_zero() {
        std::thread::sleep(left);
    }
}
