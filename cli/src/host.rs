//! `justitia host …`: memory between virtual machines.

mod duplicates;
mod table;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Subcommand};
use justitia_api::escape::{encode, plain_lines};
use justitia_api::units::bytes;
use justitia_common::command::out;
use justitia_host::channel::Wrong;
use justitia_host::config::{Config, DEFAULT_PATH};
use justitia_host::journal::{DEFAULT_DIRECTORY, Outcome};
use justitia_host::run::{Options, reset, run};
use justitia_host::status::{Status, VmStatus, ask, ask_duplicates, ask_with_tenants};
use justitia_view::table::terminal_width;

use crate::watch::{Every, watch};
use table::agent;

/// On a host of virtual machines: move memory between them, by weight and use.
///
/// A guest's page cache is memory of its QEMU process, which the host cannot reclaim. When the host's available memory falls
/// below the headroom, guests that hold more than their entitlement give cache back, what is not worth having first. Free page
/// reporting returns it to the host; the guest takes it again by using it.
///
/// In the guest `justitia guest` answers, over a virtio-serial port named org.justitia.memory.0. From a guest that does not
/// answer, or does not give, memory is taken by its balloon: only with deflate-on-oom=on, only what its kernel has available,
/// and never below its entitlement. Guests that lie, flood or are silent gain nothing beyond their weight.
#[derive(Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct Host {
    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "\
Beside QEMU:
  qemu-system-x86_64 -name web … \\
    -device virtio-balloon-pci,free-page-reporting=on,deflate-on-oom=on \\
    -qmp unix:/run/web.qmp,server=on,wait=off \\
    -device virtio-serial-pci -chardev socket,id=memory,path=/run/web.memory,server=on,wait=off \\
    -device virtserialport,chardev=memory,name=org.justitia.memory.0
  in the guest:   justitia guest
  on the host:    justitia host run

/etc/justitia/host.toml (none is needed):
  headroom = \"10%\"          # what is to stay available: of the host's memory, or of `most`; a size
  most = \"48GiB\"            # what all VMs together may hold, if less than the rest
  discover = true           # false: only the VMs below
  metrics = \"127.0.0.1:9743\"            # OpenMetrics, at /metrics; nowhere without
  # For `justitia host duplicates`: the control socket of `justitia cache serve`.
  cache = \"/run/justitia/cache.sock\"
  [[vm]]
  name = \"web\"              # as -name says it
  weight = 300              # else io.weight of its cgroup
  min = \"512MiB\"            # what it may keep before anything is divided
  uid = 1000                # the user whose process it is; without it root or a service's
  qmp = \"/run/web.qmp\"      # else as on QEMU's command line
  channel = \"/run/web.memory\"";

#[derive(Subcommand)]
enum Command {
    Run(Run),
    Status(Show),
    Top(Top),
    Explain(Explain),
    Duplicates(Duplicates),
    Reset(Reset),
}

/// Move memory between the virtual machines, until stopped.
///
/// On SIGTERM or SIGINT every balloon gets its size back, and so when the terminal is closed at which it was started. Else
/// SIGHUP has the configuration read again; one with an error changes nothing. After a SIGKILL the next start without --observe
/// restores them, or `justitia host reset`.
///
/// JUSTITIA_LOG sets what is logged: error, warn, info (the default), debug (a line for every decision), trace.
#[derive(Args)]
struct Run {
    /// Change nothing and ask no guest to give; `justitia host status` and `explain` show what would be done
    #[arg(long)]
    observe: bool,
    /// Check the configuration and exit: print each error with file and line, and what is hardly meant
    #[arg(long)]
    check_config: bool,
    /// Configuration file [default: /etc/justitia/host.toml, if it exists]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    directory: Directory,
}

/// Where the journal and the status socket are.
#[derive(Args)]
struct Directory {
    /// Directory of the journal and the status socket
    #[arg(long, value_name = "DIRECTORY", default_value = DEFAULT_DIRECTORY)]
    directory: PathBuf,
}

/// Show the virtual machines: what each holds and is entitled to.
///
/// HELD is what its QEMU process holds, ENTITLED what it may have now: minimums, what is in use, working sets and the rest, in
/// this order and each by weight. WORTH is the cache that its guest says is worth having. BALLOON is what its balloon leaves to it.
/// AGENT is none, silent, ignored (it lied or flooded), gives, or keeps (it does not give what it is asked for).
///
/// Below a VM is what its guest divides its page cache among, as `justitia guest` in it says: containers, pods and units, those
/// that hold most. WEIGHT is theirs in the guest, HELD the file pages that each holds. Guests are asked when this is called, and
/// have two seconds. Nothing is decided by it.
#[derive(Args)]
struct Show {
    /// As JSON, with all fields
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    directory: Directory,
}

/// Show what `justitia host status` does, live, until q or Ctrl-C.
///
/// Without a terminal it prints a page after the other.
#[derive(Args)]
struct Top {
    #[command(flatten)]
    every: Every,
    #[command(flatten)]
    directory: Directory,
}

/// Say what was decided of a virtual machine, and why.
#[derive(Args)]
struct Explain {
    /// Its name, or the PID of its QEMU process
    vm: String,
    #[command(flatten)]
    directory: Directory,
}

/// Show what of the virtual machines' images guest and host cache both.
///
/// HOST is what the host has of an image in its page cache (or in the memory of `justitia cache serve`, for a disk that it
/// serves), GUEST what the guest caches of that disk, as its agent says, BOTH what both do: memory that is spent twice. SHARE is
/// BOTH of all that either caches. BOTH is an estimate from a sample of blocks.
///
/// Guests are asked and images looked at when this is called, at most every 5 s, by `justitia host run`, with or without
/// --observe. Only raw images are compared: of others the host does not know where a block of the disk is. A guest tells of ext4
/// and XFS on disks and partitions.
///
/// To cache once: cache=none (the guest alone caches), [unmapped] max_ratio in the guest (mostly the host), or `justitia cache
/// serve` in mode "exclusive".
#[derive(Args)]
struct Duplicates {
    /// As JSON, with all fields
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    directory: Directory,
}

/// Restore the balloons that a killed `justitia host run` has left.
#[derive(Args)]
struct Reset {
    /// Change nothing; list what would be restored
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    directory: Directory,
}

pub(crate) fn host(args: &Host) -> anyhow::Result<ExitCode> {
    match &args.command {
        Command::Run(args) => start(args),
        Command::Status(args) => {
            let status = looked(&args.directory.directory)?;
            if args.json {
                out::line(out::json(&status)?);
            } else {
                out::print(table::text(&status, terminal_width()));
            }
            Ok(ExitCode::SUCCESS)
        }
        Command::Top(args) => {
            let directory = args.directory.directory.clone();
            watch(args.every, move || {
                Ok(table::text(&looked(&directory)?, terminal_width()))
            })?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Explain(args) => explain(args),
        Command::Duplicates(args) => {
            let found = ask_duplicates(&args.directory.directory)
                .map_err(|error| no_daemon(&args.directory.directory, &error))?;
            if args.json {
                out::line(out::json(&found)?);
            } else {
                out::print(duplicates::text(&found));
            }
            Ok(ExitCode::SUCCESS)
        }
        Command::Reset(args) => restore(args),
    }
}

fn start(args: &Run) -> anyhow::Result<ExitCode> {
    let config = Config::load(args.config.as_deref())?;
    let advice = config.advice();
    if args.check_config {
        let path = args.config.as_deref().unwrap_or(Path::new(DEFAULT_PATH));
        let file = encode(path.as_os_str());
        for what in &advice {
            out::line(format_args!("warning: {file}: {what}"));
        }
        let what = match (path.exists(), advice.len()) {
            (false, _) => "there is none, and none is needed".to_owned(),
            (true, 0) => "no errors".to_owned(),
            (true, 1) => "no errors, 1 warning".to_owned(),
            (true, count) => format!("no errors, {count} warnings"),
        };
        out::line(format_args!("{file}: {what}"));
        return Ok(ExitCode::SUCCESS);
    }
    crate::log::start();
    for what in advice {
        tracing::warn!("{what}");
    }
    run(Options {
        config,
        config_file: args.config.clone(),
        directory: args.directory.directory.clone(),
        observe: args.observe,
    })?;
    Ok(ExitCode::SUCCESS)
}

fn asked(directory: &Path) -> anyhow::Result<Status> {
    ask(directory).map_err(|error| no_daemon(directory, &error))
}

/// With tenants of the guests.
fn looked(directory: &Path) -> anyhow::Result<Status> {
    ask_with_tenants(directory).map_err(|error| no_daemon(directory, &error))
}

fn no_daemon(directory: &Path, error: &std::io::Error) -> anyhow::Error {
    if error.kind() == std::io::ErrorKind::TimedOut {
        return anyhow::anyhow!(
            "`justitia host run` in {} does not answer: {error}",
            directory.display()
        );
    }
    anyhow::anyhow!(
        "no `justitia host run` answers in {} ({error}): start one (as root: `sudo justitia host run --observe` changes \
         nothing)",
        directory.display()
    )
}

fn explain(args: &Explain) -> anyhow::Result<ExitCode> {
    let status = asked(&args.directory.directory)?;
    let is_meant = |vm: &&VmStatus| vm.name == args.vm || vm.pid.to_string() == args.vm;
    let Some(vm) = status.vms.iter().find(is_meant) else {
        let names: Vec<&str> = status.vms.iter().map(|vm| vm.name.as_str()).collect();
        anyhow::bail!(
            "expected the name or PID of a VM, found {:?}: there are {}",
            args.vm,
            if names.is_empty() {
                "none".to_owned()
            } else {
                names.join(", ")
            }
        );
    };
    out::print(plain_lines(&explained(&status, vm)));
    Ok(ExitCode::SUCCESS)
}

fn restore(args: &Reset) -> anyhow::Result<ExitCode> {
    let outcomes = reset(&args.directory.directory, args.dry_run)?;
    let mut failed = false;
    for (balloon, outcome) in &outcomes {
        let what = match outcome {
            None => "would be restored".to_owned(),
            Some(Outcome::Restored) => "restored".to_owned(),
            Some(Outcome::Gone) => "its VM ended, or has no balloon any more".to_owned(),
            Some(Outcome::Failed(error)) => {
                failed = true;
                format!("not restored: {error}")
            }
        };
        out::print(plain_lines(&format!("{balloon}: {what}\n")));
    }
    if outcomes.is_empty() {
        out::line("nothing to restore");
    }
    Ok(if failed {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}

fn explained(status: &Status, vm: &VmStatus) -> String {
    let mut lines = vec![
        format!("{} (PID {}, weight {})", vm.name, vm.pid, vm.weight),
        format!(
            "holds {} of the host's memory, and is entitled to {}: {} counts as in use, {} as working set; its share by weight is {}",
            bytes(vm.resident),
            bytes(vm.entitled),
            bytes(vm.in_use),
            bytes(vm.working_set),
            bytes(vm.share)
        ),
    ];
    lines.push(match vm.reported {
        Some((available, worth)) => format!(
            "its guest's agent says: {} available, {} of cache worth having",
            bytes(available),
            bytes(worth)
        ),
        None => format!("its guest's agent: {}", agent(vm)),
    });
    lines.extend(limits(vm));
    lines.push(match (vm.balloon, &vm.monitor_error) {
        (Some((actual, target)), _) => {
            let oom = if vm.deflates_on_oom {
                ""
            } else {
                "; it is never inflated: deflate-on-oom is off"
            };
            format!(
                "its balloon leaves {} of {}{oom}",
                bytes(actual),
                bytes(target)
            )
        }
        (None, Some(error)) => error.clone(),
        (None, None) => "no monitor was found: its balloon is not used".to_owned(),
    });
    lines.push(format!(
        "it was asked for {} so far, and gave {}",
        bytes(vm.asked),
        bytes(vm.given)
    ));
    let would = if status.observe {
        "would be done"
    } else {
        "was done"
    };
    lines.push(format!("what {would}, the latest first:"));
    let told = vm.decisions.iter().rev();
    lines.extend(told.map(|told| format!("  {} s ago: {}", told.age_s, told.what)));
    if vm.decisions.is_empty() {
        lines.push("  nothing".to_owned());
    }
    lines.join("\n") + "\n"
}

/// What keeps memory from being taken of it, and what its agent did wrong.
fn limits(vm: &VmStatus) -> Vec<String> {
    let mut lines = Vec::new();
    if vm.floor > vm.resident / 2 {
        let floor = bytes(vm.floor);
        lines.push(format!("a step that hurt showed that it needs {floor}"));
    }
    if vm.is_pinned {
        let why = "its memory is in hugepages, locked, or pinned for a device: the host would get nothing of it back, and it is not asked";
        lines.push(why.to_owned());
    }
    if vm.distress {
        lines.push("its guest lacks memory: nothing is taken".to_owned());
    }
    if vm.paused_ms > 0 {
        let seconds = vm.paused_ms.div_ceil(1000);
        lines.push(format!("it is not asked for another {seconds} s"));
    }
    let wrong = vm.wrong;
    if wrong != Wrong::default() {
        lines.push(format!(
            "its agent's lines: {} too long, {} no answers, {} not asked for, {} impossible, {} floods, {} errors",
            wrong.too_long, wrong.malformed, wrong.unasked, wrong.impossible, wrong.floods, wrong.errors
        ));
    }
    lines
}
