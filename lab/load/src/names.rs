//! `justitia-load names`: lookups of names that do not exist, as updatedb, rsync or a compiler's search for headers make
//! them: the kernel keeps each as a negative dentry, in reclaimable slab.

use std::ffi::OsStr;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use clap::Parser;

use crate::args::Times;
use crate::counters::{Counters, Timings};
use crate::measure::{Workload, drive};
use crate::pace::Pacer;
use crate::step::Step;

/// The subcommand's name.
pub(crate) const NAME: &str = "names";

/// Names that are looked up between two looks at the clock.
const BATCH: u64 = 64;
/// A name's length, bytes: nearly the longest that a file system takes.
const LENGTH: usize = 250;

/// Looks up names that do not exist, each another one, for as long as it runs. An operation is a name.
#[derive(Debug, Parser)]
#[command(version, name = "justitia-load names")]
pub(crate) struct Args {
    /// The directory to look in; made if it does not exist.
    #[arg(long)]
    dir: PathBuf,

    /// Names a second at most; 0 is without bound.
    #[arg(long, default_value_t = 0)]
    rate: u64,

    /// When it begins and how long it takes.
    #[command(flatten)]
    times: Times,
}

/// Does that. Returns whether no name existed; `interrupt` ends the run.
///
/// # Errors
/// The directory cannot be made, or standard output not be written.
pub(crate) fn run(args: &Args, interrupt: &Arc<AtomicBool>) -> Result<bool> {
    std::fs::create_dir_all(&args.dir)?;
    ensure!(
        args.dir.is_dir(),
        "expected a directory, found {}",
        args.dir.display()
    );
    let counters: Arc<Counters> = Arc::default();
    let timings: Arc<Timings> = Arc::default();
    let worker = {
        let (counters, timings) = (Arc::clone(&counters), Arc::clone(&timings));
        let (dir, rate) = (args.dir.clone(), args.rate);
        move || look_up(&dir, rate, &counters, &timings)
    };
    let workload = Workload {
        name: NAME,
        seed: 0,
        counters: &counters,
        timings: &[timings],
    };
    drive(&workload, vec![worker], &args.times, interrupt)
}

/// Until the run is over.
fn look_up(dir: &std::path::Path, rate: u64, counters: &Counters, timings: &Timings) {
    let pacer = (rate > 0).then(|| Pacer::new(rate));
    let process = std::process::id().to_string();
    let digits = LENGTH.saturating_sub(process.len() + 1);
    let mut number: u64 = 0;
    while !counters.stopped() {
        if let Some(pacer) = &pacer {
            pacer.take(BATCH, &|| counters.stopped());
        }
        let began = Instant::now();
        for _ in 0..BATCH {
            number += 1;
            // Of another process than before, too.
            let name = format!("{process}-{number:0>digits$}");
            let path = dir.join(OsStr::new(&name));
            match std::fs::symlink_metadata(&path) {
                Err(error) if error.kind() == ErrorKind::NotFound => {
                    counters.operations.fetch_add(1, Ordering::Relaxed);
                }
                found => {
                    let error = found
                        .err()
                        .unwrap_or_else(|| ErrorKind::AlreadyExists.into());
                    counters.failed(Step::Lookup, &path.to_string_lossy(), &error);
                    std::thread::sleep(Duration::from_millis(5));
                }
            }
        }
        timings.record(Step::Lookup, began.elapsed());
    }
    counters.active.fetch_sub(1, Ordering::Relaxed);
}
