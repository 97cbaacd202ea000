//! `justitia-load`: Filebench's personalities and the re-read workload, scaled, for the lab.
//!
//! Light, because it runs in a guest under software emulation: one thread a worker, plain pread
//! and pwrite, buffers made beforehand, counters that are atomics. Its README.md lists the
//! workloads, their scale beside Filebench's, and the output.

mod aligned;
mod args;
mod block;
mod counters;
mod directory;
mod fileset;
mod measure;
mod memory;
mod names;
mod output;
mod pace;
mod personality;
mod rotation;
mod run;
mod scale;
mod sizes;
mod start;
mod step;
mod transfer;
mod whole_file;
mod worker;

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::{Context, Result};
use clap::Parser;
use signal_hook::consts::{SIGINT, SIGTERM};

fn main() -> ExitCode {
    let code = match load() {
        Ok(true) => 0,
        Ok(false) => 3,
        Err(error) => {
            eprintln!("justitia-load: {error:#}");
            1
        }
    };
    // Not by returning: a worker that is blocked in the kernel must not delay the end.
    std::process::exit(code)
}

fn load() -> Result<bool> {
    let interrupt = Arc::new(AtomicBool::new(false));
    for signal in [SIGTERM, SIGINT] {
        signal_hook::flag::register(signal, Arc::clone(&interrupt))
            .context("handle SIGTERM and SIGINT")?;
    }
    let first = std::env::args_os().nth(1);
    let rest = || std::env::args_os().skip(1);
    match first.as_deref().and_then(std::ffi::OsStr::to_str) {
        Some(block::NAME) => return block::run(&block::Args::parse_from(rest()), &interrupt),
        Some(memory::NAME) => return memory::run(&memory::Args::parse_from(rest()), &interrupt),
        Some(names::NAME) => return names::run(&names::Args::parse_from(rest()), &interrupt),
        _ => {}
    }
    let config = args::Config::new(args::Args::parse())?;
    directory::check(&config.args.dir)?;
    run::run(&config, &interrupt)
}
