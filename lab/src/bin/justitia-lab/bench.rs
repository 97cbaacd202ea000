//! `justitia-lab cache bench`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use justitia_api::units::bytes;
use justitia_cache::serve::Size;
use justitia_cache::{CacheError, Weight};
use justitia_cache_lab::{bench as process, served};

use justitia_common::command::{flat, out};
use justitia_view::table::table;

/// Measure the cache on this machine: in this process, over NBD beside nbdkit and qemu-nbd, and over vhost-user beside
/// qemu-storage-daemon.
///
/// Over NBD it needs fio with its nbd engine; the others are compared with if they are installed.
/// Nothing else should run meanwhile.
#[derive(Args)]
pub(crate) struct Bench {
    /// Only what is measured in this process, of hybrid pools, over NBD, or over vhost-user
    #[arg(long)]
    only: Option<Where>,
    /// Directory for the image; its file system is measured, too
    #[arg(long, default_value = "/var/tmp")]
    directory: PathBuf,
    /// Size of the image
    #[arg(long, default_value = "256MiB")]
    size: Size,
    /// Runs of which the median is taken
    #[arg(long, default_value_t = 5)]
    runs: usize,
    /// Seconds of a run
    #[arg(long, default_value_t = 3)]
    seconds: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Where {
    Process,
    Nbd,
    Vhost,
    Hybrid,
}

pub(crate) fn bench(args: &Bench) -> anyhow::Result<()> {
    let wants = |what| args.only.is_none_or(|only| only == what);
    let options = served::Options {
        directory: args.directory.clone(),
        size: args.size,
        runs: args.runs,
        seconds: args.seconds,
    };
    if wants(Where::Process) {
        in_process(args).map_err(flat)?;
    }
    if wants(Where::Hybrid) {
        hybrid(args).map_err(flat)?;
    }
    if wants(Where::Nbd) {
        print(&served::run(&options).map_err(flat)?);
    }
    if wants(Where::Vhost) {
        print(&served::run_vhost(&options).map_err(flat)?);
    }
    Ok(())
}

/// A table for each load.
fn print(report: &served::Report) {
    let columns = "SERVER|>REQUESTS/S|>LOW|>HIGH|>JUSTITIA : SERVER|>CPU US/REQUEST";
    for section in report.sections() {
        out::line(format!("\n{}", section.title()));
        let rows = section.rows().map(|server| {
            vec![
                server.name.to_owned(),
                format!("{:.0}", server.rate.median),
                format!("{:.0}", server.rate.low),
                format!("{:.0}", server.rate.high),
                server.ratio.to_string(),
                server
                    .cost
                    .map_or_else(|| "-".to_owned(), |cost| cost.to_string()),
            ]
        });
        out::print(table(columns, rows));
    }
}

fn hybrid(args: &Bench) -> Result<(), CacheError> {
    out::line("\nhybrid pools: 4 KiB reads/s, one thread, twice as many blocks as memory has");
    let columns = "PATTERN|>DISK, ms|>MEMORY|>SSD|>HYBRID|>GAIN|>MOVES";
    let delays = [100, 1000, 8000].map(Duration::from_micros);
    let time = Duration::from_millis(400);
    let found = process::hybrid(&args.directory, &delays, args.runs, time)?;
    let rows = found.iter().map(|found| {
        vec![
            format!("{:?}", found.pattern),
            found.delay_ms.to_string(),
            format!("{:.0}", found.memory.median),
            format!("{:.0}", found.ssd.median),
            format!("{:.0}", found.hybrid.median),
            found.gain.to_string(),
            format!("{:.3}", found.moves),
        ]
    });
    out::print(table(columns, rows));
    Ok(())
}

fn in_process(args: &Bench) -> Result<(), CacheError> {
    out::line("hits of 4 KiB in this process, one thread");
    out::line(process::hits(1 << 16, 2_000_000, args.runs)?);
    out::line("\nputs of guests, one thread, beside plain copies to as much memory");
    out::line(process::puts(1 << 16, args.runs)?);
    out::line("\nthreads with a pool each: the cache's own locks against one lock, operations/s");
    let time = Duration::from_millis(300);
    let columns = ">THREADS|>OWN LOCKS|>ONE LOCK|>RATIO";
    let found = process::contention(&[1, 2, 4, 8, 16], time, args.runs)?;
    let rows = found.iter().map(|found| {
        vec![
            found.threads.to_string(),
            format!("{:.0}", found.own_locks.median),
            format!("{:.0}", found.one_lock.median),
            found.ratio.to_string(),
        ]
    });
    out::print(table(columns, rows));
    out::line("\noccupancy of four saturating pools");
    let weights = [100, 200, 400, 800].map(|w| Weight::try_from(w).unwrap_or_default());
    let columns = ">WEIGHT|>ENTITLED|>HELD|>FARTHEST";
    let pools = process::occupancy(&weights, 256 << 20)?.pools;
    let rows = pools.iter().map(|pool| {
        vec![
            pool.weight.to_string(),
            bytes(pool.entitled),
            bytes(pool.held),
            bytes(pool.farthest),
        ]
    });
    out::print(table(columns, rows));
    Ok(())
}
