//! Experiments with the cache that are data: containers in VMs, what they do, how the cache is divided, what changes when.
//!
//! They repeat those of the paper (sections 2.3 and 5) in one process, without VMs. What a guest does is modelled: a page
//! cache for each container (`page_cache`), which puts what it evicts and gets what it misses, over files that Filebench's
//! workloads read and write (`workload`). The cache under it is the real one: an exclusive [`CachedDisk`](justitia_cache::CachedDisk)
//! for each container, verified puts, pools with weights in both stores. The disk under that takes a fixed time for each
//! read, however many wait (`backing`, `cost`).

mod backing;
mod check;
mod clock;
mod container;
mod cost;
mod error;
mod files;
mod measured;
mod page_cache;
mod run;
mod schedule;
mod settle;
mod shipped;
mod spec;
mod ssd;
mod workload;
mod world;

#[cfg(test)]
mod test;

pub use clock::Clock;
pub use error::ExperimentError;
pub use measured::{MEASURES, Measured, Series};
pub use run::{Options, run};
pub use spec::{
    Configuration, Container, Division, Event, Experiment, Goal, Kind, Paper, PaperOccupancy,
    PaperResult,
};
