//! Whether everything is there that a run takes, before the first one.

use anyhow::{Result, ensure};

use super::options::Options;
use crate::experiment::Experiment;
use crate::host::{LabDir, sibling, tool};
use crate::image;
use crate::kernel::Kernel;

/// The programs of the project that experiments run in the guest.
const OURS: [&str; 3] = ["justitia-lab-guest", "justitia", "justitia-load"];

/// Looks for all programs, tells all that are missing at once, and has the kernel and the guest's image made.
///
/// # Errors
/// What is missing, and what to do.
pub(super) fn check(experiment: &Experiment, options: &Options, lab: &LabDir) -> Result<()> {
    let make = format!("mkfs.{}", experiment.disk.filesystem);
    let tools = ["qemu-system-x86_64", "setpriv", &make].map(tool);
    let tools = tools.into_iter().chain(image::tools().map(tool));
    let found = tools.chain(OURS.map(sibling));
    let missing: Vec<String> = found
        .filter_map(|found| Some(format!("{:#}", found.err()?)))
        .collect();
    ensure!(
        missing.is_empty(),
        "nothing was run:\n{}",
        missing.join("\n")
    );
    let kernel = Kernel::resolve(&options.kernel, lab)?;
    image::build(&kernel, lab)?;
    Ok(())
}
