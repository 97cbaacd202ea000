//! A run on its way: workers that begin together, lines that say how it goes, the totals at its end.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::args::Times;
use crate::counters::{Counters, Timings, Totals};
use crate::output::{Final, Line, by_operation, failures};

/// Longest sleep without a look at signals and workers.
const SLICE: Duration = Duration::from_millis(50);
/// How long workers may take to finish the operation that they are in at the end, which then counts
/// by operation but not in the totals; one that the kernel holds up for longer is left to the end of
/// the process.
const GRACE: Duration = Duration::from_secs(1);
/// Workers have shallow stacks, and a guest little memory.
const STACK: usize = 128 << 10;

/// Starts a thread for each of `workers`. They all wait at the barrier that is returned: starting them is
/// not part of the run.
///
/// # Errors
/// A thread cannot be started.
pub(crate) fn spawn<W: FnOnce() + Send + 'static>(workers: Vec<W>) -> Result<Arc<Barrier>> {
    let go = Arc::new(Barrier::new(workers.len() + 1));
    for (id, worker) in workers.into_iter().enumerate() {
        let go = Arc::clone(&go);
        std::thread::Builder::new()
            .name(format!("worker-{id}"))
            .stack_size(STACK)
            .spawn(move || {
                go.wait();
                worker();
            })
            .context("start a worker thread")?;
    }
    Ok(go)
}

/// Starts workers together when it is time, prints what they do, and waits for their end. Returns whether everything
/// succeeded; `interrupt` ends the run.
///
/// # Errors
/// A thread cannot be started, or standard output not be written.
pub(crate) fn drive<W: FnOnce() + Send + 'static>(
    workload: &Workload<'_>,
    workers: Vec<W>,
    times: &Times,
    interrupt: &AtomicBool,
) -> Result<bool> {
    let Workload {
        name,
        seed,
        counters,
        timings,
    } = workload;
    let threads = u32::try_from(workers.len())?;
    counters.active.store(workers.len(), Ordering::Relaxed);
    let go = spawn(workers)?;
    let interrupted = || interrupt.load(Ordering::Relaxed);
    if !times.start.wait(&interrupted)? {
        counters.stop.store(true, Ordering::Relaxed);
    }
    Line::Start {
        personality: name,
        threads,
        files: 1,
        existing: 1,
        seed: *seed,
    }
    .print()?;
    go.wait();
    let measured = Measured {
        name,
        counters,
        timings,
        interrupted: &interrupted,
    };
    let last = measured.run(times)?;
    let good = last.errors == 0;
    Line::Final(last).print()?;
    Ok(good)
}

/// A workload without a file set, for [`drive`].
pub(crate) struct Workload<'a> {
    /// Its name in the output.
    pub name: &'static str,
    /// Its seed.
    pub seed: u64,
    /// Where its workers count.
    pub counters: &'a Counters,
    /// Every worker's latencies.
    pub timings: &'a [Arc<Timings>],
}

/// What workers do, while they do it.
pub(crate) struct Measured<'a> {
    /// The workload.
    pub name: &'static str,
    /// The workers' counters; `active` is set to how many there are.
    pub counters: &'a Counters,
    /// Every worker's latencies.
    pub timings: &'a [Arc<Timings>],
    /// Whether the run is to end.
    pub interrupted: &'a dyn Fn() -> bool,
}

impl Measured<'_> {
    /// Prints lines until the run is over, stops the workers, and returns what they did.
    ///
    /// # Errors
    /// Standard output cannot be written.
    pub(crate) fn run(&self, times: &Times) -> Result<Final> {
        let before = self.ramp(times.ramp);
        let began = Instant::now();
        let totals = self.watch(times, began, before)?.since(before);
        let seconds = began.elapsed().as_secs_f64();
        let patience = Instant::now() + GRACE;
        while self.counters.active.load(Ordering::Relaxed) > 0 && Instant::now() < patience {
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(Final {
            personality: self.name,
            seconds,
            interrupted: (self.interrupted)(),
            loops: self.counters.loops.load(Ordering::Relaxed),
            operations: totals.operations,
            read_bytes: totals.read,
            written_bytes: totals.written,
            errors: totals.errors,
            by_operation: by_operation(self.timings.iter().map(|t| &**t)),
            failures: failures(self.counters),
        })
    }

    /// Lets pass what is not counted: the totals at its end. Without a ramp, everything since the workers began
    /// counts.
    fn ramp(&self, seconds: f64) -> Totals {
        if seconds <= 0.0 {
            return Totals::default();
        }
        let end = Instant::now() + Duration::from_secs_f64(seconds);
        while Instant::now() < end && !(self.interrupted)() {
            std::thread::sleep(end.saturating_duration_since(Instant::now()).min(SLICE));
        }
        for timings in self.timings {
            timings.clear();
        }
        self.counters.totals()
    }

    /// The totals at the run's end, which the intervals and those `before` add up to.
    fn watch(&self, times: &Times, began: Instant, mut before: Totals) -> Result<Totals> {
        let deadline = began + Duration::from_secs_f64(times.duration);
        let mut intervals = Ticker::new(began, times.interval);
        loop {
            let now = Instant::now();
            let t = (now - began).as_secs_f64();
            let over = now >= deadline
                || (self.interrupted)()
                || self.counters.active.load(Ordering::Relaxed) == 0;
            // First, so that each worker is at most one operation ahead of the totals.
            self.counters.stop.store(over, Ordering::Relaxed);
            let totals = self.counters.totals();
            if intervals.due(now) || (over && times.interval > 0.0) {
                Line::interval(t, before, totals).print()?;
                before = totals;
            }
            if over {
                return Ok(totals);
            }
            let wake = intervals.next.map_or(deadline, |next| next.min(deadline));
            let left = wake.saturating_duration_since(Instant::now());
            std::thread::sleep(left.min(SLICE));
        }
    }
}

/// Something that is due again and again.
struct Ticker {
    period: Duration,
    next: Option<Instant>,
}

impl Ticker {
    /// Every `seconds`, 0 for never.
    fn new(began: Instant, seconds: f64) -> Self {
        let period = Duration::from_secs_f64(seconds);
        Self {
            period,
            next: (!period.is_zero()).then(|| began + period),
        }
    }

    /// Whether it is due; ticks that were missed are not made up for.
    fn due(&mut self, now: Instant) -> bool {
        match self.next {
            Some(next) if now >= next => {
                let mut following = next + self.period;
                if following <= now {
                    following = now + self.period;
                }
                self.next = Some(following);
                true
            }
            _ => false,
        }
    }
}
