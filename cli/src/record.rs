//! `justitia record`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Args;
use justitia_view::record::Recorder;

use crate::agent::ConfigArgs;
use crate::source::StatusSource;
use justitia_common::command::out;

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
                out::note(format_args!(
                    "justitia: {}",
                    justitia_common::command::error_text(&error)
                ));
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
