//! `doctor`: what this host can do.

mod facts;
mod host;
mod screen;
mod text;

use std::process::ExitCode;

use clap::Args;
use justitia_common::command::out;

use host::Host;

/// Show what will work on this host, what not, and why.
///
/// Nothing is changed. The first lines are the verdict: page cache, device bandwidth, hypervisor cache and guest. Then come
/// the runtimes that were found, with what is read of their containers, and what limits or prevents something. `(no)` is no
/// loss: what is not there is not needed, or is off by default. `--all` shows every fact: kernel, cgroup controllers, probes,
/// disks. Run it as root: what another user may not read counts as missing.
///
/// Exit code: 0 if what is on by default works, and names and weights of every runtime found can be read; 2 if not.
#[derive(Args)]
pub(crate) struct Doctor {
    /// Every fact, after the screen
    #[arg(long)]
    all: bool,
    /// As JSON, with all fields
    #[arg(long, conflicts_with = "all")]
    json: bool,
}

pub(crate) fn doctor(args: &Doctor) -> anyhow::Result<ExitCode> {
    let host = Host::look()?;
    if args.json {
        out::line(out::json(&host.json())?);
    } else {
        out::print(screen::text(&host));
        if args.all {
            out::line("");
            facts::print(&host);
        }
    }
    Ok(match host.works() {
        true => ExitCode::SUCCESS,
        false => ExitCode::from(2),
    })
}
