//! What to run, and how progress is shown.

use crate::experiment::Configuration;
use crate::kernel::KernelChoice;

/// What to run.
#[derive(Clone, Debug)]
pub struct Options {
    /// What to compare; the experiment's own when empty.
    pub configurations: Vec<Configuration>,
    /// Runs of each; the experiment's own when absent.
    pub repeat: Option<u32>,
    /// With and without MGLRU: every value gets its runs. The kernel's default: `[None]`.
    pub mglru: Vec<Option<bool>>,
    /// The guest's kernel.
    pub kernel: KernelChoice,
    /// The seed of the configurations' order and of the workloads.
    pub seed: u64,
}

/// Shows how it goes.
pub trait Progress {
    /// What is going on: which run of how many, what in it, and how long it may still take.
    fn now(&mut self, line: &str);
    /// Something that stays on the screen.
    fn note(&mut self, line: &str);
}
