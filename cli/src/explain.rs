//! `justitia explain`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::bail;
use clap::Args;
use justitia_agent::config::Config;
use justitia_agent::knobs::{RestoreOutcome, preview_reset};
use justitia_api::escape::plain_lines;
use justitia_api::{Status, TenantStatus};
use justitia_cgroup_tree::{MAX_DEPTH, Resolver};
use justitia_kernel::block::disk_name;
use justitia_kernel::cgroup::{Cgroup, CgroupFs, Ownership};
use justitia_kernel::io::DevId;
use justitia_kernel::knob::{Knob, read_raw};
use justitia_view::explain::{
    CurrentValues, LeftKnob, Unmanaged, bounds, explain as explanation, find, nearest, unmanaged,
};
use justitia_view::record::Recording;

use crate::agent::ConfigArgs;
use crate::source::StatusSource;
use justitia_common::command::out;

/// Say why each knob of a tenant stands where it stands, what would change it, and what was decided lately.
#[derive(Args)]
pub(crate) struct Explain {
    /// Its name as `justitia status` shows it, its cgroup's path, the end of that, or any part that only one has; `unmanaged` for
    /// what is in no managed cgroup
    tenant: String,
    /// From a recording: what was known then (knobs' reasons are not recorded)
    #[arg(long, value_name = "FILE")]
    replay: Option<PathBuf>,
    /// With --replay: the moment, in seconds after its beginning [default: its end]
    #[arg(long, value_name = "SECONDS", requires = "replay")]
    at: Option<u32>,
    #[command(flatten)]
    config: ConfigArgs,
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
                bounds: bounds(&status.limitations),
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
    let state = config.state_dir.clone();
    let mut source = StatusSource::new(config)?;
    let alone = matches!(source, StatusSource::InProcess(_));
    if alone {
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
    let left = if alone {
        left(&was, &state)
    } else {
        (Vec::new(), false)
    };
    let mut current = current_values(&was, left.0).unwrap_or_default();
    current.left_unknown = left.1;
    current.drop_restored();
    let after = source.look()?;
    // A knob that the agent has taken or given back meanwhile would be shown as another writer's.
    let is = tenant(&after).unwrap_or_default();
    let held = |tenant: &TenantStatus, knob: &str| tenant.knobs.iter().any(|k| k.knob == knob);
    current
        .knobs
        .retain(|(knob, _)| held(&was, knob) == held(&is, knob));
    Ok((after, current))
}

/// What a killed agent has left in a tenant's knobs; and whether that is not known of all.
fn left(tenant: &TenantStatus, state: &Path) -> (Vec<LeftKnob>, bool) {
    let preview = CgroupFs::discover()
        .map_err(anyhow::Error::from)
        .and_then(|fs| Ok(preview_reset(&fs, state, true)?));
    let preview = match preview {
        Ok(preview) => preview,
        Err(error) => {
            let error = plain_lines(&error.to_string());
            out::note(format_args!(
                "justitia: the knob journal cannot be read: {error}"
            ));
            return (Vec::new(), true);
        }
    };
    let restored = preview.restored.iter();
    let left: Vec<_> = restored
        .filter(|knob| knob.outcome == RestoreOutcome::Restored)
        .collect();
    if !left.is_empty() {
        out::note(format_args!(
            "justitia: an agent that was killed has left its values in {} knobs: `sudo justitia reset --dry-run` lists them, \
             `sudo justitia reset` undoes them. Until then a memory.low of them counts as a minimum here",
            left.len()
        ));
    }
    // The machine's knobs are the root cgroup's.
    let path = if tenant.is_unmanaged() {
        ""
    } else {
        &tenant.path
    };
    let of_tenant = left.into_iter().filter(|knob| knob.path == path);
    let of_tenant = of_tenant.map(|knob| LeftKnob {
        knob: knob.knob.to_string(),
        original: knob.original.clone(),
    });
    (of_tenant.collect(), preview.corruption.is_some())
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

/// What stands in a tenant's knobs now; of the unmanaged tenant, in those of the machine that the agent has written, or a
/// killed agent has left.
fn current_values(tenant: &TenantStatus, left: Vec<LeftKnob>) -> Option<CurrentValues> {
    if tenant.is_unmanaged() {
        let root = CgroupFs::discover().ok()?;
        let machine = [Knob::DirtyBackground, Knob::VfsCachePressure];
        let knobs = machine.into_iter().filter_map(|knob| {
            let name = knob.to_string();
            let is_left = left.iter().any(|k| k.knob == name);
            let is_written = is_left || tenant.knobs.iter().any(|k| k.knob == name);
            let value = is_written.then(|| read_raw(root.root(), knob).ok());
            Some((name, value.flatten()?))
        });
        return Some(CurrentValues {
            knobs: knobs.collect(),
            left,
            ..CurrentValues::default()
        });
    }
    let cgroup = cgroup(&tenant.path)?;
    // The agent's lines of disks, and those of one that was killed.
    let names = tenant.knobs.iter().map(|k| k.knob.as_str());
    let names: Vec<&str> = names.chain(left.iter().map(|k| k.knob.as_str())).collect();
    let written = |file: &str| -> Vec<DevId> {
        let device = |name: &&str| name.strip_prefix(file)?.strip_prefix(' ')?.parse().ok();
        names.iter().filter_map(device).collect()
    };
    let (io_cost, bfq) = (written("io.weight"), written("io.bfq.weight"));
    let limits = [
        ("io.max", cgroup.io_max().unwrap_or_default()),
        ("io.latency", cgroup.io_latency().unwrap_or_default()),
    ];
    let lines = limits.iter().flat_map(|(_, lines)| lines);
    let limited = lines.map(|(device, _)| *device);
    let mut devices: Vec<DevId> = limited.chain(io_cost.clone()).chain(bfq.clone()).collect();
    devices.sort_unstable();
    devices.dedup();
    let disks = devices.iter().filter_map(|device| {
        let name = disk_name(Path::new("/sys/dev/block"), *device)?;
        Some((device.to_string(), name))
    });
    let memory = [
        Knob::MemoryMin,
        Knob::MemoryLow,
        Knob::MemoryHigh,
        Knob::MemoryMax,
    ];
    let knobs = memory
        .into_iter()
        .chain(io_cost.into_iter().map(Knob::IoWeightOn))
        .chain(bfq.into_iter().map(Knob::IoBfqWeightOn))
        .filter_map(|knob| Some((knob.to_string(), read_raw(&cgroup, knob).ok()?)));
    // An operator's limits and targets of disks.
    let limits = limits.into_iter().flat_map(|(file, lines)| {
        let lines = lines.into_iter();
        lines.map(move |(device, line)| (format!("{file} {device}"), line))
    });
    Some(CurrentValues {
        knobs: knobs.chain(limits).collect(),
        disks: disks.collect(),
        left,
        left_unknown: false,
    })
}

/// What is known of a cgroup that is no tenant.
fn facts(path: &str, config: &Config) -> Unmanaged {
    let path = path.trim_matches('/');
    let memory =
        |path: &str| cgroup(path).is_some_and(|c| c.controllers().is_ok_and(|c| c.has("memory")));
    let named = Path::new(path);
    let above = named.ancestors().skip(1).filter_map(Path::to_str);
    let mut above = above.take_while(|path| !path.is_empty());
    let is_delegated = |path: &Path| {
        let ownership = path.to_str().and_then(cgroup).map(|c| c.ownership());
        matches!(ownership, Some(Ok(Ownership::Delegatee)))
    };
    let mut resolver = Resolver::new(Path::new("/"));
    Unmanaged {
        exists: cgroup(path).is_some(),
        root: path.is_empty(),
        memory: memory(path),
        excluded: config.excludes(named, is_delegated, &mut resolver),
        above: above
            .find(|path| memory(path))
            .unwrap_or_default()
            .to_owned(),
        too_deep: named.components().count() > MAX_DEPTH,
        ..Unmanaged::default()
    }
}
