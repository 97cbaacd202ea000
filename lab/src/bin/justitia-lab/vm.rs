//! Experiments on a stock kernel in a virtual machine.

use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use clap::{Args, ValueEnum};
use justitia_api::escape::plain_lines;
use justitia_lab::experiment::{Configuration, Experiment};
use justitia_lab::kernel::KernelChoice;
use justitia_lab::report::{self, ReportError};
use justitia_lab::run::{Options, Progress};
use justitia_lab::vm::{DiskSpec, Vm, VmSpec};

use justitia_common::command::out;
use justitia_common::toml_file::none_of;

/// Runs experiments and prints what came out; the results are kept for `justitia-lab report`.
///
/// Every run gets a fresh virtual machine on a fresh disk; configurations run in random order.
#[derive(Args)]
pub(crate) struct Run {
    /// Which: a name from `justitia-lab list`, or the path of a .toml file.
    #[arg(required = true)]
    experiments: Vec<String>,
    /// How often each configuration runs (default: the experiment's).
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    repeat: Option<u32>,
    /// What to compare, several times or with commas (default: the experiment's).
    #[arg(long, value_delimiter = ',', value_parser = Configuration::find)]
    configuration: Vec<Configuration>,
    /// A stock kernel's series (6.12, 6.1), or the path of a bootable kernel.
    #[arg(long, default_value = "6.12")]
    kernel: KernelChoice,
    /// The multi-generational LRU: on, off, both, or as the kernel comes.
    #[arg(long, value_enum, default_value_t = Mglru::Default)]
    mglru: Mglru,
    /// The seed of the order of configurations and of the workloads (default: random, printed).
    #[arg(long)]
    seed: Option<u64>,
    /// Print the results as JSON instead of tables.
    #[arg(long)]
    json: bool,
}

/// Runs the mixtures that ordinary hosts have, the kernel alone and with the agent, and prints one table: hits and
/// throughput of every tenant, and what the host's disk read, ours against the kernel's.
///
/// Exit status 1 if a run failed; what was worse than it may be is said, and no error.
#[derive(Args)]
pub(crate) struct Ordinary {
    /// Which (default: all).
    mixtures: Vec<String>,
    /// How often each configuration runs.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    repeat: u32,
    /// A stock kernel's series (6.12, 6.1), or the path of a bootable kernel.
    #[arg(long, default_value = "6.12")]
    kernel: KernelChoice,
    /// The multi-generational LRU: on, off, both, or as the kernel comes.
    #[arg(long, value_enum, default_value_t = Mglru::Both)]
    mglru: Mglru,
    /// The seed of the order of configurations and of the workloads (default: random, printed).
    #[arg(long)]
    seed: Option<u64>,
    /// Run nothing: print what the last runs have measured.
    #[arg(long)]
    again: bool,
    /// Print JSON instead of the table.
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum Mglru {
    On,
    Off,
    Both,
    Default,
}

impl Mglru {
    fn states(self) -> Vec<Option<bool>> {
        match self {
            Self::On => vec![Some(true)],
            Self::Off => vec![Some(false)],
            Self::Both => vec![Some(true), Some(false)],
            Self::Default => vec![None],
        }
    }
}

/// Renders all results so far as one HTML page.
#[derive(Args)]
pub(crate) struct Report {
    /// Where the results are (default: where `run` leaves them).
    #[arg(long)]
    results: Option<PathBuf>,
    /// The page to write (default: report.html beside the results' directory).
    #[arg(long)]
    out: Option<PathBuf>,
}

/// Boots the guest and gives its console: root, no password, an ext4 disk at /dev/vda.
/// `poweroff -f` ends it.
#[derive(Args)]
pub(crate) struct Shell {
    /// A stock kernel's series (6.12, 6.1), or the path of a bootable kernel.
    #[arg(long, default_value = "6.12")]
    kernel: KernelChoice,
}

pub(crate) fn run(args: &Run) -> Result<ExitCode> {
    // Everything is checked before anything runs.
    let experiments = args
        .experiments
        .iter()
        .map(|name| Experiment::find(name))
        .collect::<Result<Vec<_>>>()?;
    let seed = args.seed.unwrap_or_else(justitia_lab::run::random_seed);
    let options = Options {
        configurations: args.configuration.clone(),
        repeat: args.repeat,
        mglru: args.mglru.states(),
        kernel: args.kernel.clone(),
        seed,
    };
    let mut screen = Screen::new();
    screen.note(&format!("seed {seed}"));
    let mut all = Vec::new();
    for experiment in &experiments {
        let (results, path) = justitia_lab::run::run(experiment, &options, &mut screen)?;
        screen.note(&format!("results: {}", path.display()));
        if !args.json {
            out::tell(report::terminal(std::slice::from_ref(&results)));
        }
        all.push(results);
    }
    if args.json {
        out::line(out::json(&all).context("printing results")?);
    }
    Ok(if all.iter().any(justitia_lab::run::any_failed) {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}

pub(crate) fn ordinary(args: &Ordinary) -> Result<ExitCode> {
    let mut mixtures = Experiment::ordinary()?;
    for name in &args.mixtures {
        let known = mixtures.iter().map(|mixture| &*mixture.name);
        ensure!(
            known.clone().any(|known| known == name),
            none_of("a mixture", name, known)
        );
    }
    mixtures.retain(|mixture| args.mixtures.is_empty() || args.mixtures.contains(&mixture.name));
    let all = if args.again {
        measured(&mixtures)?
    } else {
        measure(&mixtures, args)?
    };
    let compared = report::ordinary::mixtures(&all);
    if args.json {
        out::line(out::json(&compared).context("printing results")?);
    } else {
        out::line(report::ordinary::table(&compared));
    }
    Ok(if all.iter().any(justitia_lab::run::any_failed) {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}

/// Runs mixtures.
fn measure(mixtures: &[Experiment], args: &Ordinary) -> Result<Vec<report::schema::Results>> {
    let compared = report::ordinary::COMPARED.map(Configuration::find);
    let configurations = compared.into_iter().collect::<Result<Vec<_>, _>>();
    let options = Options {
        configurations: configurations.map_err(anyhow::Error::msg)?,
        repeat: Some(args.repeat),
        mglru: args.mglru.states(),
        kernel: args.kernel.clone(),
        seed: args.seed.unwrap_or_else(justitia_lab::run::random_seed),
    };
    let mut screen = Screen::new();
    screen.note(&format!("seed {}", options.seed));
    let mut all = Vec::new();
    for (number, mixture) in mixtures.iter().enumerate() {
        let (name, count) = (&mixture.name, mixtures.len());
        screen.note(&format!("{name}: {} of {count} mixtures", number + 1));
        let (results, _) = justitia_lab::run::run(mixture, &options, &mut screen)?;
        for compared in report::ordinary::mixtures(std::slice::from_ref(&results)) {
            let losses = compared.losses();
            let said = match compared.good {
                Some(true) => "reaches the goals".to_owned(),
                Some(false) => losses.join("; "),
                None => "not measured".to_owned(),
            };
            screen.note(&format!("{name}, {}: {said}", compared.lru()));
        }
        all.push(results);
    }
    Ok(all)
}

/// What the last runs of these mixtures have measured, in their order.
fn measured(mixtures: &[Experiment]) -> Result<Vec<report::schema::Results>> {
    let results = report::read(&justitia_lab::LabDir::find()?.dir("results")?)?;
    let of = |mixture: &Experiment| {
        let of_mixture = results.iter().filter(|r| r.experiment == mixture.name);
        of_mixture.cloned().collect::<Vec<_>>()
    };
    Ok(mixtures.iter().flat_map(of).collect())
}

pub(crate) fn list() -> Result<ExitCode> {
    for experiment in Experiment::shipped()? {
        let paper = experiment
            .paper
            .as_ref()
            .map(|paper| format!(" ({}, {})", paper.title, paper.figure))
            .unwrap_or_default();
        out::line(format_args!(
            "{:20} {}{paper}",
            experiment.name, experiment.title
        ));
        out::line(format_args!(
            "{:20} configurations: {}",
            "",
            experiment.configurations.join(", ")
        ));
        out::line(format_args!("{:20} {}\n", "", takes(&experiment)));
    }
    out::line("A run takes longer where a phase runs to its own end.\n");
    out::line("Configurations:");
    for configuration in Configuration::all() {
        out::line(format_args!(
            "{:20} {}",
            configuration.id, configuration.what
        ));
    }
    out::line("\nExperiments with the hypervisor cache: `justitia-lab cache experiment --list`.");
    out::line("Experiments between VMs: docs/results/papers.md.");
    Ok(ExitCode::SUCCESS)
}

/// About how many seconds an emulated guest takes to boot and to make its files.
const BOOT: u64 = 30;

/// How long an experiment takes at least.
fn takes(experiment: &Experiment) -> String {
    let runs = experiment.configurations.len() * usize::try_from(experiment.repeat).unwrap_or(1);
    let seconds = experiment.seconds();
    let minutes = ((seconds + BOOT) * u64::try_from(runs).unwrap_or(1)).div_ceil(60);
    format!(
        "takes at least {minutes} min: {runs} runs of {seconds} s, and some {BOOT} s each for the boot of an emulated guest"
    )
}

/// Prints an experiment as it is written, and after it those that it builds on.
#[derive(Args)]
pub(crate) struct Show {
    /// Which: a name from `justitia-lab list`, or the path of a .toml file.
    #[arg(value_name = "NAME")]
    experiment: String,
}

pub(crate) fn show(args: &Show) -> Result<ExitCode> {
    let experiment = Experiment::find(&args.experiment)?;
    out::line(format_args!(
        "# {}: {}",
        experiment.name,
        takes(&experiment)
    ));
    for text in Experiment::texts(&args.experiment)? {
        out::line(format_args!("\n# {}\n", text.file().display()));
        out::print(plain_lines(text.text()));
    }
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn render(args: &Report) -> Result<ExitCode> {
    let lab = justitia_lab::LabDir::find()?;
    let results = match &args.results {
        Some(dir) => dir.clone(),
        None => lab.dir("results")?,
    };
    let out = args
        .out
        .clone()
        .unwrap_or_else(|| lab.root().join("report.html"));
    report::render(&results, &out).map_err(|error| {
        let none = matches!(error, ReportError::Empty { .. });
        let error = anyhow::Error::from(error);
        if none {
            error.context("nothing to report: run `justitia-lab run reread-x4` first")
        } else {
            error
        }
    })?;
    out::line(out.display());
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn shell(args: &Shell) -> Result<ExitCode> {
    let vm = Vm::boot(&VmSpec {
        kernel: args.kernel.clone(),
        disks: vec![DiskSpec::ext4(8 << 30)],
        shell: true,
        ..VmSpec::default()
    })?;
    out::note("poweroff -f ends the guest");
    vm.wait();
    Ok(ExitCode::SUCCESS)
}

/// Progress on standard error: one line that changes on a terminal, a line for each step elsewhere.
struct Screen {
    terminal: bool,
}

impl Screen {
    fn new() -> Self {
        Self {
            terminal: std::io::stderr().is_terminal(),
        }
    }
}

impl Progress for Screen {
    fn now(&mut self, line: &str) {
        if self.terminal {
            let _ = write!(std::io::stderr(), "\r\x1b[K{line}");
        } else {
            out::note(line);
        }
    }

    fn note(&mut self, line: &str) {
        if self.terminal {
            let _ = writeln!(std::io::stderr(), "\r\x1b[K{line}");
        } else {
            out::note(line);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_boot_of_each_run_counts() {
        let experiment = Experiment::find("reread-equal").unwrap();
        assert_eq!(
            takes(&experiment),
            "takes at least 8 min: 12 runs of 6 s, and some 30 s each for the boot of an emulated guest"
        );
    }
}
