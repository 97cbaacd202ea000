//! Running an experiment: every configuration as often as asked, each time in a fresh guest on a fresh
//! disk, in random order.

use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result, ensure};

use crate::experiment::{Configuration, Experiment};
use crate::host::Places;
use crate::kernel::KernelChoice;
use crate::report::schema::{Machine, Outcome, Results, Run, VERSION};
use crate::vm::{Accelerator, Vm, VmError, VmSpec};
use crate::wire::{Answer, Ask, Event, FILES, Measured, Plan};

/// The longest that one run may take in the guest.
const LIMIT: Duration = Duration::from_secs(1800);

/// What to run.
#[derive(Clone, Debug)]
pub struct Options {
    /// Whom to compare; the experiment's own when empty.
    pub configurations: Vec<Configuration>,
    /// How often; the experiment's own when absent.
    pub repeat: Option<u32>,
    /// With and without MGLRU: every value gets its runs. As the kernel comes: `[None]`.
    pub mglru: Vec<Option<bool>>,
    /// On which kernel.
    pub kernel: KernelChoice,
    /// Of the configurations' order and of the workloads.
    pub seed: u64,
}

/// Somebody who is told how it goes.
pub trait Progress {
    /// What is going on: which run of how many, what in it, and how long it may still take.
    fn now(&mut self, line: &str);
    /// Something that should stay on the screen.
    fn note(&mut self, line: &str);
}

/// Runs an experiment and writes the results as it goes.
///
/// # Errors
/// Nothing can be run at all. A run that fails is part of the results.
pub fn run(
    experiment: &Experiment,
    options: &Options,
    progress: &mut dyn Progress,
) -> Result<(Results, PathBuf)> {
    let configurations = match options.configurations.as_slice() {
        [] => experiment
            .configurations
            .iter()
            .map(|id| Configuration::find(id).map_err(anyhow::Error::msg))
            .collect::<Result<_>>()?,
        chosen => chosen.to_vec(),
    };
    let repeat = options.repeat.unwrap_or(experiment.repeat);
    ensure!(repeat > 0, "expected at least one repeat, found 0");
    let places = Places::find()?;
    let mut results = empty(experiment, &configurations, options)?;
    let order = order(&configurations, &options.mglru, repeat, options.seed);
    let begin = Instant::now();
    for (number, (configuration, mglru, repeat)) in order.iter().enumerate() {
        let label = match mglru {
            None => configuration.label.clone(),
            Some(true) => format!("{}, MGLRU on", configuration.label),
            Some(false) => format!("{}, MGLRU off", configuration.label),
        };
        let left = left(begin.elapsed(), number, order.len());
        let title = format!(
            "{} [{}/{}] {label}, repeat {}{left}",
            experiment.name,
            number + 1,
            order.len(),
            repeat + 1,
        );
        let plan = || Plan {
            experiment: experiment.clone(),
            configuration: configuration.clone(),
            mglru: *mglru,
            // The same for every configuration of a repeat: they meet the same files.
            seed: options.seed.wrapping_add(u64::from(*repeat)) % (1 << 31),
        };
        let one = one(&plan, options, &mut results.machine, &title, progress);
        let mut run = Run {
            configuration: configuration.id.clone(),
            mglru: *mglru,
            repeat: *repeat,
            outcome: Outcome::Measured,
            tenants: Vec::new(),
            values: [].into(),
            timeline: Vec::new(),
            curves: Vec::new(),
        };
        match one {
            Ok(measured) => {
                run.mglru = measured.mglru;
                run.tenants = measured.tenants;
                run.values = measured.values;
                run.timeline = measured.timeline;
                run.curves = measured.curves;
            }
            Err(error) => {
                progress.note(&format!("{title}: failed: {error:#}"));
                run.outcome = failed(&error);
            }
        }
        results.runs.push(run);
        write(&results, &places)?;
    }
    let path = write(&results, &places)?;
    Ok((results, path))
}

/// A seed nobody chose, short enough to be typed again.
#[must_use]
pub fn random_seed() -> u64 {
    fastrand::u64(1..1_000_000)
}

/// Whether a run did not measure what it should.
#[must_use]
pub fn any_failed(results: &Results) -> bool {
    results
        .runs
        .iter()
        .any(|run| run.outcome != Outcome::Measured)
}

/// One run, tried once more when the guest crashes.
fn one(
    plan: &dyn Fn() -> Plan,
    options: &Options,
    machine: &mut Machine,
    title: &str,
    progress: &mut dyn Progress,
) -> Result<Measured> {
    let first = attempt(plan(), options, machine, title, progress);
    match first {
        Err(error)
            if error
                .downcast_ref::<VmError>()
                .is_some_and(VmError::is_crash) =>
        {
            progress.note(&format!("{title}: trying once more: {error:#}"));
            attempt(plan(), options, machine, title, progress)
        }
        other => other,
    }
}

fn attempt(
    plan: Plan,
    options: &Options,
    machine: &mut Machine,
    title: &str,
    progress: &mut dyn Progress,
) -> Result<Measured> {
    let begin = Instant::now();
    let mut say = |what: &str| {
        progress.now(&format!(
            "{title}: {what} ({} s)",
            begin.elapsed().as_secs()
        ))
    };
    say("booting");
    let vm = Vm::boot(&VmSpec {
        kernel: options.kernel.clone(),
        memory: plan.experiment.machine.memory.0,
        vcpus: plan.experiment.machine.vcpus,
        disks: vec![plan.experiment.disk.spec()],
        qemu_args: plan.experiment.machine.qemu_args(),
        ..VmSpec::default()
    })?;
    let files = plan.experiment.contents()?;
    if !files.is_empty() {
        vm.guest().ok(&format!("mkdir -p {FILES}"))?;
    }
    for (name, content) in files {
        vm.guest()
            .push(&format!("{FILES}/{name}"), 0o644, &content)?;
    }
    machine.kernel = vm.guest().kernel();
    machine.accelerator = vm.accelerator().to_string();
    let mut on_event = |event: Event| match event {
        Event::Progress(what) => {
            say(&what);
            Ok(())
        }
        Event::Disk(speed) => vm.set_disk_speed(0, speed),
    };
    let answer = vm.guest().request(
        Ask::Run(Box::new(plan)),
        LIMIT,
        "run the experiment",
        &mut on_event,
    )?;
    match answer {
        Answer::Ran(measured) => Ok(*measured),
        other => anyhow::bail!("expected the run's results, found {other:?}"),
    }
}

fn failed(error: &anyhow::Error) -> Outcome {
    let console = error.downcast_ref::<VmError>().and_then(VmError::console);
    let reason = match error.downcast_ref::<VmError>() {
        Some(VmError::Panic { .. }) => "the guest's kernel panicked, twice".to_owned(),
        Some(VmError::Hang { .. }) => "the guest hung, twice".to_owned(),
        _ => format!("{error:#}"),
    };
    Outcome::Failed {
        reason,
        console: console.unwrap_or_default().to_owned(),
    }
}

/// Every repeat has all configurations in an order of its own.
fn order(
    configurations: &[Configuration],
    mglru: &[Option<bool>],
    repeat: u32,
    seed: u64,
) -> Vec<(Configuration, Option<bool>, u32)> {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut all = Vec::new();
    for number in 0..repeat {
        let mut once: Vec<_> = configurations
            .iter()
            .flat_map(|configuration| mglru.iter().map(|on| (configuration.clone(), *on, number)))
            .collect();
        random.shuffle(&mut once);
        all.extend(once);
    }
    all
}

/// How long it may still take, from how long the runs took so far.
fn left(elapsed: Duration, done: usize, all: usize) -> String {
    let (Ok(done), Ok(rest)) = (u32::try_from(done), u32::try_from(all.saturating_sub(done)))
    else {
        return String::new();
    };
    match elapsed.checked_div(done) {
        None => String::new(),
        Some(each) => {
            let seconds = (each * rest).as_secs();
            format!(", about {} min {:02} s left", seconds / 60, seconds % 60)
        }
    }
}

fn empty(
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
        date: now()?,
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

fn processor() -> Result<String> {
    let text = std::fs::read_to_string("/proc/cpuinfo").context("reading /proc/cpuinfo")?;
    Ok(text
        .lines()
        .find_map(|line| Some(line.strip_prefix("model name")?.split_once(':')?.1.trim()))
        .unwrap_or("unknown")
        .to_owned())
}

/// RFC 3339, UTC.
fn now() -> Result<String> {
    let since = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .context("expected a clock after 1970")?
        .as_secs();
    let (year, month, day) = civil(since / 86_400);
    let (hour, minute, second) = (since / 3600 % 24, since / 60 % 60, since % 60);
    Ok(format!(
        "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z"
    ))
}

/// The date of a day since 1970-01-01, by whole years and months.
fn civil(mut day: u64) -> (u64, u64, u64) {
    let leap = |year: u64| {
        (year.is_multiple_of(4) && !year.is_multiple_of(100)) || year.is_multiple_of(400)
    };
    let mut year = 1970;
    while day >= 365 + u64::from(leap(year)) {
        day -= 365 + u64::from(leap(year));
        year += 1;
    }
    let mut month = 1;
    for days in [
        31,
        28 + u64::from(leap(year)),
        31,
        30,
        31,
        30,
        31,
        31,
        30,
        31,
        30,
        31,
    ] {
        if day < days {
            break;
        }
        day -= days;
        month += 1;
    }
    (year, month, day + 1)
}

/// Writes the results so far; a reader sees the old document or the new one.
fn write(results: &Results, places: &Places) -> Result<PathBuf> {
    let dir = places.dir("results")?;
    let path = dir.join(format!(
        "{}@{}.json",
        results.experiment,
        results.machine.kernel.replace('/', "_")
    ));
    let file = tempfile::NamedTempFile::new_in(&dir)?;
    serde_json::to_writer_pretty(&file, results).context("writing results")?;
    file.persist(&path)
        .with_context(|| format!("writing {}", path.display()))?;
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates() {
        assert_eq!(civil(0), (1970, 1, 1));
        assert_eq!(civil(11_016), (2000, 2, 29));
        assert_eq!(civil(20_778), (2026, 11, 21));
    }

    #[test]
    fn every_repeat_has_everybody_once_and_the_seed_decides_the_order() {
        let all = Configuration::all();
        let runs = order(&all, &[Some(true), Some(false)], 3, 7);
        assert_eq!(runs.len(), all.len() * 2 * 3);
        for configuration in &all {
            for repeat in 0..3 {
                let found = runs
                    .iter()
                    .filter(|(c, _, r)| c == configuration && *r == repeat);
                assert_eq!(found.count(), 2, "{} {repeat}", configuration.id);
            }
        }
        assert_eq!(runs, order(&all, &[Some(true), Some(false)], 3, 7));
        assert_ne!(runs, order(&all, &[Some(true), Some(false)], 3, 8));
    }

    #[test]
    fn time_left_is_what_the_others_took() {
        assert_eq!(left(Duration::ZERO, 0, 5), "");
        assert_eq!(
            left(Duration::from_secs(60), 2, 5),
            ", about 1 min 30 s left"
        );
    }
}
