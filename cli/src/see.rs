//! `top`, `explain`, `record`.

use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::Args;
use justitia_agent::Standalone;
use justitia_agent::config::Config;
use justitia_api::client::ask;
use justitia_api::escape::plain_lines;
use justitia_api::{Status, TenantStatus};
use justitia_kernel::cgroup::{Cgroup, CgroupFs, Ownership};
use justitia_kernel::knob::{Knob, read_raw};
use justitia_view::explain::{
    CurrentValues, Unmanaged, explain as explanation, find, nearest, unmanaged,
};
use justitia_view::record::{Recorder, Recording};
use justitia_view::top::{self, source::Source};

use crate::agent::{ConfigArgs, unanswered};
use crate::out;

/// Show every tenant live: weight, entitlement, usage, bandwidth, hit ratio, PV.
///
/// Asks the running agent; where none runs, it observes by itself and changes nothing. `?` explains the columns,
/// Enter explains a tenant. NO_COLOR switches colour off.
#[derive(Args)]
pub(crate) struct Top {
    /// Play a recording of `justitia record` instead
    #[arg(long, value_name = "FILE")]
    replay: Option<PathBuf>,
    /// Seconds between two looks
    #[arg(long, default_value = "1", value_parser = clap::value_parser!(u64).range(1..=3600))]
    every: u64,
    #[command(flatten)]
    config: ConfigArgs,
}

/// Say why each knob of a tenant stands where it stands, what would change it, and what was decided lately.
#[derive(Args)]
pub(crate) struct Explain {
    /// Its path, the end of it, or any part that only one has; `unmanaged` for what is in no managed cgroup
    tenant: String,
    /// From a recording: what was known then (knobs' reasons are not recorded)
    #[arg(long, value_name = "FILE")]
    replay: Option<PathBuf>,
    /// With --replay: so many seconds after its beginning [default: its end]
    #[arg(long, value_name = "SECONDS", requires = "replay")]
    at: Option<u32>,
    #[command(flatten)]
    config: ConfigArgs,
}

/// Record what the agent tells, once a second, for `justitia top --replay`.
///
/// Where no agent runs, it observes by itself and changes nothing; it says which of the two it does.
/// Ends on SIGINT and SIGTERM with everything written; a kill costs the last minute.
#[derive(Args)]
pub(crate) struct Record {
    /// The file, which must not exist
    file: PathBuf,
    /// End after this many seconds [default: when told to]
    #[arg(long, value_name = "SECONDS")]
    seconds: Option<u64>,
    #[command(flatten)]
    config: ConfigArgs,
}

/// The source of the status: the running agent, or one in this process.
enum StatusSource {
    Agent(PathBuf),
    InProcess(Box<Standalone>),
}

impl StatusSource {
    fn new(config: Config) -> anyhow::Result<Self> {
        match UnixStream::connect(&config.socket) {
            Ok(_) => return Ok(Self::Agent(config.socket)),
            Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
                return Err(unanswered(&config.socket, &error));
            }
            Err(_) => {}
        }
        let socket = config.socket.clone();
        let standalone = Standalone::open(config).with_context(|| {
            format!(
                "no agent answers at {} (is `justitia run` running, and are you root?), and observing without \
                 one does not work",
                socket.display()
            )
        })?;
        Ok(Self::InProcess(Box::new(standalone)))
    }

    fn look(&mut self) -> anyhow::Result<Status> {
        match self {
            Self::Agent(socket) => {
                ask(socket).with_context(|| format!("asking the agent at {}", socket.display()))
            }
            Self::InProcess(standalone) => Ok(standalone.sample()?),
        }
    }
}

pub(crate) fn top(args: &Top) -> anyhow::Result<ExitCode> {
    let colour = std::env::var_os("NO_COLOR").is_none()
        && std::env::var("TERM").is_ok_and(|t| t != "dumb" && !t.starts_with("vt"));
    let period = Duration::from_secs(args.every);
    let source = match &args.replay {
        Some(file) => Source::recording(file)?,
        None => match StatusSource::new(args.config.load()?)? {
            StatusSource::Agent(socket) => Source::agent(&socket, period),
            StatusSource::InProcess(mut standalone) => {
                Source::own("no agent runs: observing", period, move || {
                    standalone.sample().map_err(|e| e.to_string())
                })
            }
        },
    };
    top::run(source, colour).context("this needs a terminal")?;
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn record(args: &Record) -> anyhow::Result<ExitCode> {
    let mut source = StatusSource::new(args.config.load()?)?;
    let mut recorder = Recorder::create(&args.file)?;
    out::note(match &source {
        StatusSource::Agent(socket) => {
            format!(
                "justitia: recording what the agent at {} tells",
                socket.display()
            )
        }
        StatusSource::InProcess(_) => {
            "justitia: no agent runs: recording what one would see; nothing is changed".to_owned()
        }
    });
    let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, std::sync::Arc::clone(&stop))
            .context("a signal handler")?;
    }
    let begun = Instant::now();
    let end = args.seconds.map(Duration::from_secs);
    let (mut count, mut unanswered) = (0u32, 0u32);
    let stopped = || stop.load(std::sync::atomic::Ordering::Relaxed);
    while !stopped() && end.is_none_or(|end| begun.elapsed() < end) {
        match source.look() {
            Ok(status) => recorder.record(&status)?,
            // An agent that is restarted is no reason to end a recording.
            Err(error) => {
                unanswered += 1;
                out::note(format_args!("justitia: {}", crate::error_text(&error)));
            }
        }
        count += 1;
        let next = Duration::from_secs(1) * count;
        while !stopped() && begun.elapsed() < next {
            std::thread::sleep(Duration::from_millis(50).min(next.saturating_sub(begun.elapsed())));
        }
    }
    let recorded = recorder.finish()?;
    let unanswered = match unanswered {
        0 => String::new(),
        times => format!("; {times} times nobody answered"),
    };
    out::note(format_args!(
        "justitia: recorded {} statuses in {:.0} s, {} bytes, in {}{unanswered}",
        recorded.statuses,
        begun.elapsed().as_secs_f64(),
        recorded.bytes,
        args.file.display()
    ));
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn explain(args: &Explain) -> anyhow::Result<ExitCode> {
    let (status, config, current) = match &args.replay {
        Some(file) => (recorded(file, args.at)?, None, CurrentValues::default()),
        None => {
            let config = args.config.load()?;
            let (status, current) = live(config.clone(), &args.tenant)?;
            (status, Some(config), current)
        }
    };
    match find(&status, &args.tenant) {
        Ok(index) => {
            let text = explanation(&status, index, &current);
            out::print(plain_lines(&text));
            Ok(ExitCode::SUCCESS)
        }
        Err(paths) if paths.is_empty() => {
            let names = nearest(&status, &args.tenant);
            let Some(config) = config else {
                bail!(
                    "no tenant of the recording is called {:?}; the nearest are\n  {}",
                    args.tenant,
                    names.join("\n  ")
                );
            };
            let path = args.tenant.trim_start_matches("/sys/fs/cgroup");
            let facts = Unmanaged {
                nearest: names,
                ..facts(path, &config)
            };
            out::line(plain_lines(&unmanaged(path, &facts)));
            Ok(ExitCode::FAILURE)
        }
        Err(paths) => bail!(
            "{:?} could be any of\n  {}",
            args.tenant,
            paths.join("\n  ")
        ),
    }
}

/// One status, and what stands in the tenant's knobs beside it. An agent of our own has to look for a while before it
/// knows anything of applications.
fn live(config: Config, name: &str) -> anyhow::Result<(Status, CurrentValues)> {
    let mut source = StatusSource::new(config)?;
    if matches!(source, StatusSource::InProcess(_)) {
        out::note("justitia: no agent runs; observing for 3 s to say what one would do");
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(3) {
            source.look()?;
            std::thread::sleep(Duration::from_millis(200));
        }
    }
    let before = source.look()?;
    let tenant = |status: &Status| Some(status.tenants.get(find(status, name).ok()?)?.clone());
    let Some(was) = tenant(&before) else {
        return Ok((before, CurrentValues::default()));
    };
    let mut current = current_values(&was).unwrap_or_default();
    let after = source.look()?;
    // What the agent has taken or given back meanwhile would be told as somebody else's.
    let is = tenant(&after).unwrap_or_default();
    let held = |tenant: &TenantStatus, knob: &str| tenant.knobs.iter().any(|k| k.knob == knob);
    current
        .knobs
        .retain(|(knob, _)| held(&was, knob) == held(&is, knob));
    Ok((after, current))
}

fn recorded(file: &Path, at: Option<u32>) -> anyhow::Result<Status> {
    let mut recording = Recording::open(file)?;
    if recording.lost() > 0 {
        out::note(format_args!(
            "justitia: {} bytes of {} are cut off or damaged",
            recording.lost(),
            file.display()
        ));
    }
    let position = match at {
        Some(seconds) => recording.position(recording.span().0 + f64::from(seconds))?,
        None => recording.len(),
    };
    Ok(Status::clone(&*recording.status(position)?))
}

fn cgroup(path: &str) -> Option<Cgroup> {
    let path = justitia_api::escape::decode(path.trim_matches('/'))?;
    Cgroup::open_at(&CgroupFs::discover().ok()?, Path::new(&path)).ok()
}

/// What stands in a cgroup's knobs now; of what is outside any, in those of the machine that the agent knows.
fn current_values(tenant: &TenantStatus) -> Option<CurrentValues> {
    if tenant.path == "-" {
        let root = CgroupFs::discover().ok()?;
        let told = tenant.knobs.iter().map(|k| k.knob.clone());
        let machine = Knob::DirtyBackground;
        let knobs = told
            .filter(|knob| *knob == machine.to_string())
            .filter_map(|knob| Some((knob, read_raw(root.root(), machine).ok()?)))
            .collect();
        return Some(CurrentValues {
            knobs,
            ..CurrentValues::default()
        });
    }
    let cgroup = cgroup(&tenant.path)?;
    let mut knobs = vec![
        Knob::MemoryMin,
        Knob::MemoryLow,
        Knob::MemoryHigh,
        Knob::MemoryMax,
    ];
    // Of every disk on which anybody has limited it.
    let limits = std::fs::read_to_string(cgroup.full_path().join("io.max")).unwrap_or_default();
    let limited = limits.lines().filter_map(|line| line.split(' ').next());
    let held = tenant
        .knobs
        .iter()
        .filter_map(|k| k.knob.strip_prefix("io.max "));
    let mut devices: Vec<_> = limited.chain(held).filter_map(|d| d.parse().ok()).collect();
    devices.sort_unstable();
    devices.dedup();
    let disks = devices
        .iter()
        .map(ToString::to_string)
        .filter_map(|number| {
            let disk = std::fs::read_link(Path::new("/sys/dev/block").join(&number)).ok()?;
            Some((number, disk.file_name()?.to_string_lossy().into_owned()))
        })
        .collect();
    knobs.extend(devices.into_iter().map(Knob::IoMax));
    let knobs = knobs
        .into_iter()
        .filter_map(|knob| Some((knob.to_string(), read_raw(&cgroup, knob).ok()?)))
        .collect();
    Some(CurrentValues { knobs, disks })
}

fn facts(path: &str, config: &Config) -> Unmanaged {
    let path = path.trim_matches('/');
    let memory =
        |path: &str| cgroup(path).is_some_and(|c| c.controllers().is_ok_and(|c| c.has("memory")));
    let named = Path::new(path);
    let above = named.ancestors().skip(1).filter_map(Path::to_str);
    let mut above = above.take_while(|path| !path.is_empty());
    // Of what a delegate may have made.
    let given = |path: &Path| {
        let authority = path.to_str().and_then(cgroup).map(|c| c.ownership());
        matches!(authority, Some(Ok(Ownership::Delegatee)))
    };
    let excluded = named.ancestors().any(|path| {
        let made = path.ancestors().skip(1).any(given);
        config.overrides(path, made).exclude == Some(true)
    });
    Unmanaged {
        exists: cgroup(path).is_some(),
        root: path.is_empty(),
        memory: memory(path),
        excluded,
        above: above
            .find(|path| memory(path))
            .unwrap_or_default()
            .to_owned(),
        nearest: Vec::new(),
    }
}
