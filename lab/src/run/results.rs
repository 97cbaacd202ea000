//! The document of results.

use std::path::PathBuf;
use std::time::SystemTime;

use anyhow::Result;

use super::options::Options;
use crate::experiment::{Configuration, Experiment};
use crate::host::{LabDir, processor};
use crate::kernel::KernelChoice;
use crate::report;
use crate::report::schema::{Machine, Results, VERSION};
use crate::vm::Accelerator;

/// The document before the first run.
pub(super) fn empty(
    experiment: &Experiment,
    configurations: &[Configuration],
    options: &Options,
) -> Result<Results> {
    let disk = &experiment.disk;
    // In the order in which the lab lists them, the baseline first.
    let mut shown: Vec<&Configuration> = configurations.iter().collect();
    shown.sort_by_key(|configuration| {
        experiment
            .configurations
            .iter()
            .position(|id| *id == configuration.id)
            .unwrap_or(usize::MAX)
    });
    Ok(Results {
        schema: VERSION,
        experiment: experiment.name.clone(),
        title: experiment.title.clone(),
        question: experiment.question.clone(),
        paper: experiment.paper.clone(),
        machine: Machine {
            kernel: match &options.kernel {
                KernelChoice::Series(series) => series.clone(),
                KernelChoice::Path(path) => path.display().to_string(),
            },
            accelerator: Accelerator::Tcg.to_string(),
            cpu: processor()?,
            vcpus: experiment.machine.vcpus,
            memory_bytes: experiment.machine.memory.0,
            disk: format!(
                "{}, {} MB/s by QEMU",
                disk.filesystem,
                disk.bytes_per_second.0 / 1_000_000
            ),
        },
        date: humantime::format_rfc3339_seconds(SystemTime::now()).to_string(),
        seed: options.seed,
        tenants: experiment.described_tenants(),
        configurations: shown.into_iter().map(Configuration::described).collect(),
        metrics: experiment.metrics(),
        goals: experiment
            .goal
            .iter()
            .filter(|goal| {
                let runs = |id: &str| {
                    configurations
                        .iter()
                        .any(|configuration| configuration.id == id)
                };
                runs(&goal.configuration) && goal.measure.other().is_none_or(runs)
            })
            .cloned()
            .collect(),
        runs: Vec::new(),
    })
}

/// Writes the results so far.
pub(super) fn write(results: &Results, lab: &LabDir) -> Result<PathBuf> {
    let kernel = results.machine.kernel.replace('/', "_");
    let name = format!("{}@{kernel}", results.experiment);
    report::write(results, &lab.dir("results")?, &name)
}
