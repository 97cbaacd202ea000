//! `guest`: the guest's side of the hypervisor cache, and of memory between VMs.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use justitia_guest::{Options, Status, run};

use crate::agent::ConfigArgs;
use justitia_common::command::out;

/// How often the log says what was done.
const REPORT_EVERY: Duration = Duration::from_secs(60);

/// In a virtual machine: hand evicted pages and unused memory to the host.
///
/// EVICTED PAGES. The host runs `justitia cache serve` with a disk of this machine in mode "exclusive" and a port: `[vm.port]` in its
/// configuration. The port is a second disk, of 128 KiB. It is found by its serial (justitia-port...) or by what it answers,
/// or named with --port. Nothing else may use it.
///
/// Clean pages that the kernel evicts are copied, with their places on the disk, and written to the port. The host compares
/// each with what it knows of the disk, so a wrong page is never served. When the page is read again, it comes from the
/// host's memory. A container (a cgroup with the memory controller) gets a pool of the host's cache, by its io.weight.
///
/// What the host refuses, and what is never read again, is offered less: of a file system that encrypts nothing for a while,
/// of a pool whose pages never come back one page in 64, then nothing, until the kernel's refaults show that they do.
///
/// The machine never waits for the port. If it is gone, this looks for it again and the machine goes on as without. It can
/// run beside `justitia run`, and needs x86-64, BTF, and root.
///
/// MEMORY. Where the machine has the virtio-serial port org.justitia.memory.0, the host is told what the memory is used for,
/// and gets clean page cache that is not worth having when it asks: free page reporting (virtio-balloon) returns it. What is
/// mapped or used stays, nothing is swapped, and the machine takes memory again by using it. That needs Linux 5.19, cgroup v2
/// with the memory controller, and root; with swap, Linux 6.9. Where `justitia run` runs too, it says what is worth having.
///
/// JUSTITIA_LOG sets what is logged: error, warn, info (the default), debug, trace.
#[derive(Args)]
pub(crate) struct Guest {
    /// The port's device, such as /dev/vdb [default: it is looked for]
    #[arg(long, value_name = "DEVICE")]
    port: Option<PathBuf>,
    /// Print the status as a line of JSON at this interval, 1 to 3600 seconds
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u16).range(1..=3600))]
    json: Option<u16>,
    #[command(flatten)]
    config: ConfigArgs,
}

pub(crate) fn guest(args: &Guest) -> anyhow::Result<ExitCode> {
    let config = args.config.load()?;
    crate::log::start();
    let every = args.json.map(|seconds| Duration::from_secs(seconds.into()));
    let options = Options {
        buffer: config.guest.buffer,
        ssd: config.guest.ssd,
        unmanaged_weight: u32::try_from(config.unmanaged.weight.get()).unwrap_or(u32::MAX),
        rules: config.rules,
        port: args.port.clone(),
        agent_socket: config.socket,
        report_every: Some(every.unwrap_or(REPORT_EVERY)),
    };
    run(&options, |status| report(status, args.json.is_some()))?;
    Ok(ExitCode::SUCCESS)
}

fn report(status: &Status, json: bool) {
    if json {
        match serde_json::to_string(status) {
            Ok(line) => out::tell(line),
            Err(error) => tracing::warn!(%error, "the status is not printed"),
        }
        return;
    }
    let of = |verdict| status.offered.get(verdict).copied().unwrap_or(0);
    tracing::info!(
        copied = status.copied,
        accepted = of("accepted"),
        held = of("held"),
        unknown = of("unknown"),
        mismatch = of("mismatch"),
        held_back = status.held_back,
        ring_full = status.ring_full,
        pools = status.pools,
        put_ns = status.put_ns,
        hit_saves_ns = status.hit_saves_ns,
        "evicted pages so far"
    );
}
