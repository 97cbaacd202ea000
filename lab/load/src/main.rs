//! `justitia-load`: Filebench's personalities and the re-read workload, scaled, for the lab.
//!
//! Light, because it runs in a guest under software emulation: one thread a worker, plain pread
//! and pwrite, buffers made beforehand, counters that are atomics. Its README.md lists the
//! workloads, their scale beside Filebench's, and the output.

mod args;
mod block;
mod counters;
mod fileset;
mod measure;
mod output;
mod pace;
mod personality;
mod residency;
mod run;
mod sizes;
mod start;
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
    // Not by returning: a worker that the kernel holds up must not hold up the end.
    std::process::exit(code)
}

fn load() -> Result<bool> {
    let interrupt = Arc::new(AtomicBool::new(false));
    for signal in [SIGTERM, SIGINT] {
        signal_hook::flag::register(signal, Arc::clone(&interrupt))
            .context("handle SIGTERM and SIGINT")?;
    }
    let mut words = std::env::args_os();
    if words.nth(1).is_some_and(|word| word == block::NAME) {
        let args = block::Args::parse_from(std::env::args_os().skip(1));
        return block::run(&args, &interrupt);
    }
    let config = args::Config::new(args::Args::parse())?;
    run::check_directory(&config.args.dir)?;
    run::run(&config, &interrupt)
}
