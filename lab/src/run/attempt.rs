//! One run, in a fresh guest on a fresh disk.

use std::time::{Duration, Instant};

use anyhow::Result;

use super::options::{Options, Progress};
use crate::protocol::{Event, FILES, Measurements, Request, Response, RunRequest};
use crate::report::schema::{Machine, Outcome};
use crate::vm::{Vm, VmError, VmSpec};

/// The longest that one run may take in the guest.
const LIMIT: Duration = Duration::from_secs(1800);

/// One run, tried once more when the guest crashes.
pub(super) fn run_once(
    request: &dyn Fn() -> RunRequest,
    options: &Options,
    machine: &mut Machine,
    title: &str,
    progress: &mut dyn Progress,
) -> Result<Measurements> {
    let first = attempt(request(), options, machine, title, progress);
    match first {
        Err(error) if VmError::crashed(&error) => {
            progress.note(&format!("{title}: trying once more: {error:#}"));
            attempt(request(), options, machine, title, progress)
        }
        other => other,
    }
}

fn attempt(
    request: RunRequest,
    options: &Options,
    machine: &mut Machine,
    title: &str,
    progress: &mut dyn Progress,
) -> Result<Measurements> {
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
        memory: request.experiment.machine.memory.0,
        vcpus: request.experiment.machine.vcpus,
        fixed_speed: request.experiment.machine.fixed_speed,
        disks: vec![request.experiment.disk.spec()],
        qemu_args: Vec::new(),
        ..VmSpec::default()
    })?;
    let files = request.experiment.contents()?;
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
    let response = vm.guest().request(
        Request::Run(Box::new(request)),
        LIMIT,
        "run the experiment",
        &mut on_event,
    )?;
    match response {
        Response::Ran(measured) => Ok(*measured),
        other => anyhow::bail!("expected the run's results, found {other:?}"),
    }
}

/// How a run that failed is shown.
pub(super) fn failed(error: &anyhow::Error) -> Outcome {
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
