//! `justitia-load memory`: anonymous memory that is filled at once or grows, and then stays cold or is used.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::Parser;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use crate::args::{Times, parse_seconds, parse_size};
use crate::counters::{Counters, Timings};
use crate::measure::{Workload, drive};
use crate::pace::{Pacer, sleep_until};
use crate::step::Step;

/// The subcommand's name.
pub(crate) const NAME: &str = "memory";

/// Bytes of a page.
const PAGE: u64 = 4096;
/// Pages that are touched between two looks at the clock.
const BATCH: u64 = 256;

/// Fills anonymous memory, and then leaves it cold or touches its pages at random. An operation is a page touched.
#[derive(Debug, Parser)]
#[command(version, name = "justitia-load memory")]
pub(crate) struct Args {
    /// How much, in bytes; k, m, g are powers of 1024.
    #[arg(long, value_parser = parse_size)]
    size: u64,

    /// Seconds over which it grows to that; 0 is at once.
    #[arg(long, default_value = "0", value_parser = parse_seconds)]
    grow: f64,

    /// Once it is full, touch so many pages a second at random places; 0 leaves it cold.
    #[arg(long, default_value_t = 0)]
    touch: u64,

    /// Seed of the random places.
    #[arg(long, default_value_t = 1)]
    seed: u64,

    /// Not used: there for the lab, which gives it to every workload.
    #[arg(long, hide = true)]
    dir: Option<PathBuf>,

    /// When it begins and how long it takes.
    #[command(flatten)]
    times: Times,
}

/// Does that. Returns whether it succeeded, which it always does; `interrupt` ends the run.
///
/// # Errors
/// The size cannot be addressed, or standard output not be written.
pub(crate) fn run(args: &Args, interrupt: &Arc<AtomicBool>) -> Result<bool> {
    let bytes = usize::try_from(args.size).context("--size")?;
    let counters: Arc<Counters> = Arc::default();
    let timings: Arc<Timings> = Arc::default();
    let worker = Worker {
        counters: Arc::clone(&counters),
        timings: Arc::clone(&timings),
        // The kernel gives zeroed pages when they are touched: until then they take nothing.
        memory: vec![0; bytes],
        grow: Duration::from_secs_f64(args.grow),
        touch: args.touch,
        rng: ChaCha8Rng::seed_from_u64(args.seed),
    };
    let workload = Workload {
        name: NAME,
        seed: args.seed,
        counters: &counters,
        timings: &[timings],
    };
    drive(&workload, vec![|| worker.run()], &args.times, interrupt)
}

struct Worker {
    counters: Arc<Counters>,
    timings: Arc<Timings>,
    memory: Vec<u8>,
    grow: Duration,
    touch: u64,
    rng: ChaCha8Rng,
}

impl Worker {
    fn run(mut self) {
        self.fill();
        self.use_it();
        // Cold, until the run is over.
        let counters = Arc::clone(&self.counters);
        while !counters.stopped() {
            std::thread::sleep(Duration::from_millis(50));
        }
        counters.active.fetch_sub(1, Ordering::Relaxed);
    }

    fn pages(&self) -> u64 {
        u64::try_from(self.memory.len()).unwrap_or(0) / PAGE
    }

    fn fill(&mut self) {
        let (began, pages) = (Instant::now(), self.pages());
        let each = self.grow.div_f64(justitia_share::num::to_f64(pages.max(1)));
        for first in (0..pages).step_by(256) {
            let counters = Arc::clone(&self.counters);
            if counters.stopped() {
                return;
            }
            let due = each.mul_f64(justitia_share::num::to_f64(first));
            sleep_until(began + due, &|| counters.stopped());
            self.batch(first..pages.min(first + BATCH));
        }
    }

    fn use_it(&mut self) {
        let pages = self.pages();
        if self.touch == 0 || pages == 0 {
            return;
        }
        let (counters, pacer) = (Arc::clone(&self.counters), Pacer::new(self.touch));
        while !counters.stopped() {
            pacer.take(BATCH, &|| counters.stopped());
            let places: Vec<u64> = (0..BATCH)
                .filter_map(|_| self.rng.next_u64().checked_rem(pages))
                .collect();
            self.batch(places);
        }
    }

    /// Touches these pages. The latency is that of all of them: a clock's reading a page would cost more than the touch.
    fn batch(&mut self, pages: impl IntoIterator<Item = u64>) {
        let (began, mut touched) = (Instant::now(), 0);
        for page in pages {
            let at = usize::try_from(page * PAGE).unwrap_or(usize::MAX);
            if let Some(byte) = self.memory.get_mut(at) {
                // Or the compiler leaves it out: the content is not read.
                *byte = std::hint::black_box(byte.wrapping_add(1));
                touched += 1;
            }
        }
        self.timings.record(Step::Touch, began.elapsed());
        self.counters
            .operations
            .fetch_add(touched, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_page_is_touched_once_and_then_at_random() {
        let counters: Arc<Counters> = Arc::default();
        let mut worker = Worker {
            counters: Arc::clone(&counters),
            timings: Arc::default(),
            memory: vec![0; 1 << 20],
            grow: Duration::ZERO,
            touch: 0,
            rng: ChaCha8Rng::seed_from_u64(1),
        };
        worker.fill();
        assert_eq!(counters.totals().operations, 256);
        assert!(worker.memory.iter().step_by(4096).all(|byte| *byte == 1));
        worker.use_it();
        assert_eq!(counters.totals().operations, 256);
    }
}
