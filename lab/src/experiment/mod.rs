//! Experiments as data: one TOML file per question, most after a figure of a paper.
//!
//! The shipped ones lie in `lab/experiments/` and are compiled in; any other file can be given by
//! path. A definition may build on another one: see [`Experiment::parse`].

mod check;
mod configuration;
mod definition;
mod load;
mod metric;
mod phase;
pub mod reference;
mod shipped;
mod source;

#[cfg(test)]
mod tests;

pub use configuration::{Configuration, IoCost, MemoryLimit, Scheduler};
pub use definition::{Disk, Experiment, Machine, Scale, Tenant, Workload, count_name};
pub use metric::MetricName;
pub use phase::{
    AgentChange, DiskPhase, MeasurePhase, OUTSIDER, Phase, RecordPhase, RunPhase, SamplePhase,
    StopPhase, WaitPhase, WeightsPhase,
};
