//! Which worker sends which request, and when.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use justitia_share::num::to_f64;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use super::line::{Request, SECTOR};
use crate::aligned::Aligned;
use crate::counters::{Counters, Timings};
use crate::pace::{Pacer, sleep_until};
use crate::step::Step;
use crate::transfer::open;

/// Largest single read or write in bytes; larger requests are done in pieces.
pub(super) const PIECE: u64 = 1 << 20;
/// Pause after a failed request.
const AFTER_ERROR: Duration = Duration::from_millis(5);

/// Where requests come from.
#[derive(Debug)]
pub(super) enum Source {
    /// A trace, from its beginning again at its end.
    Trace(Trace),
    /// Random places.
    Random {
        /// How many of a hundred requests read.
        read_percent: u32,
        /// The size of each in bytes.
        bytes: u64,
        /// Places are multiples of this many bytes.
        step: u64,
        /// The first place that has not been read yet; none is left from as many on as there are places.
        unswept: AtomicU64,
    },
}

impl Source {
    /// The largest request in bytes, in whole sectors.
    pub(super) fn largest(&self) -> u64 {
        let largest = match self {
            Self::Random { bytes, .. } => *bytes,
            Self::Trace(trace) => {
                let sizes = trace.requests.iter().map(|request| request.bytes);
                sizes.max().unwrap_or(SECTOR)
            }
        };
        largest.div_ceil(SECTOR).saturating_mul(SECTOR)
    }
}

/// A trace being replayed.
#[derive(Debug)]
pub(super) struct Trace {
    /// At least one.
    pub requests: Vec<Request>,
    /// How many times as fast as it was recorded; `None`: each request as soon as a worker is free.
    pub speed: Option<f64>,
    /// How many have been taken.
    pub taken: Mutex<u64>,
}

/// A request, and when it is due: so long after the beginning, or at once.
type Due = (Request, Option<Duration>);

impl Trace {
    /// The next one.
    fn take(&self) -> Option<Due> {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let number = *taken;
        *taken += 1;
        drop(taken);
        let count = u64::try_from(self.requests.len()).ok()?;
        let (lap, index) = (number.checked_div(count)?, number.checked_rem(count)?);
        let request = *self.requests.get(usize::try_from(index).ok()?)?;
        let due = self.speed.map(|speed| {
            // From the last to the first again as long as between two on average.
            let last = to_f64(self.requests.last().map_or(0, |last| last.at));
            let length = last + last / to_f64(count.saturating_sub(1).max(1));
            let at = (to_f64(lap) * length + to_f64(request.at)) / speed / 1e9;
            // A century is later than any end.
            Duration::from_secs_f64(at.min(3.2e9))
        });
        Some((request, due))
    }
}

/// What the workers share.
pub(super) struct Job {
    /// Where they count.
    pub counters: Arc<Counters>,
    /// What they do.
    pub source: Source,
    /// On what.
    pub path: PathBuf,
    /// Its size in bytes, a multiple of [`SECTOR`], at least [`PIECE`].
    pub size: u64,
    /// Past the page cache.
    pub direct: bool,
    /// The bound on their transfers.
    pub pacer: Option<Pacer>,
    /// Of random places and of what is written.
    pub seed: u64,
    /// When the first request was due.
    pub began: OnceLock<Instant>,
}

/// One worker: one outstanding request.
pub(super) struct Worker {
    job: Arc<Job>,
    timings: Arc<Timings>,
    rng: ChaCha8Rng,
    file: File,
    buffer: Aligned,
}

impl Worker {
    /// Number `id`.
    ///
    /// # Errors
    /// The file cannot be opened.
    pub(super) fn new(job: Arc<Job>, timings: Arc<Timings>, id: u32) -> io::Result<Self> {
        let mut rng = ChaCha8Rng::seed_from_u64(job.seed);
        rng.set_stream(u64::from(id));
        Ok(Self {
            file: open(&job.path, job.direct, false)?,
            buffer: Aligned::noise(&mut rng, job.source.largest().min(PIECE)),
            job,
            timings,
            rng,
        })
    }

    /// Does requests until the run is over.
    pub(super) fn run(mut self) {
        let job = Arc::clone(&self.job);
        let stopped = || job.counters.stopped();
        let began = *job.began.get_or_init(Instant::now);
        while !stopped() {
            let Some((request, due)) = self.next() else {
                break;
            };
            // A late request counts its latency from its due time: the wait is part of it.
            let due = due.map(|due| began + due);
            if let Some(due) = due {
                sleep_until(due, &stopped);
                if stopped() {
                    break;
                }
            }
            if let Some(pacer) = &job.pacer {
                pacer.take(request.bytes, &stopped);
            }
            self.attempt(request, due.unwrap_or_else(Instant::now));
        }
        job.counters.active.fetch_sub(1, Ordering::Relaxed);
    }

    fn next(&mut self) -> Option<Due> {
        match &self.job.source {
            Source::Trace(trace) => trace.take(),
            Source::Random {
                read_percent,
                bytes,
                step,
                unswept,
            } => {
                let places = self.job.size / step;
                let swept = unswept.load(Ordering::Relaxed) >= places;
                let next = (!swept).then(|| unswept.fetch_add(1, Ordering::Relaxed));
                let random = self.rng.next_u64().checked_rem(places)?;
                let next = next.filter(|place| *place < places);
                let request = Request {
                    at: 0,
                    write: next.is_none() && self.rng.next_u64() % 100 >= u64::from(*read_percent),
                    offset: next.unwrap_or(random) * step,
                    bytes: *bytes,
                };
                Some((request, None))
            }
        }
    }

    fn attempt(&mut self, request: Request, since: Instant) {
        let step = if request.write {
            Step::Write
        } else {
            Step::Read
        };
        match self.transfer(request) {
            Ok(()) => {
                self.timings.record(step, since.elapsed());
                self.job.counters.operations.fetch_add(1, Ordering::Relaxed);
            }
            Err(error) => {
                let path = self.job.path.to_string_lossy();
                self.job.counters.failed(step, &path, &error);
                std::thread::sleep(AFTER_ERROR);
            }
        }
    }

    fn transfer(&mut self, request: Request) -> io::Result<()> {
        let (mut offset, bytes) = place(request, self.job.size);
        let counters = &self.job.counters;
        let mut left = bytes;
        while left > 0 {
            let piece = self.buffer.first_mut(left);
            let (result, counter) = if request.write {
                (self.file.write_at(piece, offset), &counters.written)
            } else {
                (self.file.read_at(piece, offset), &counters.read)
            };
            match result {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(count) => {
                    let count = u64::try_from(count).unwrap_or(left).min(left);
                    counter.fetch_add(count, Ordering::Relaxed);
                    offset += count;
                    left -= count;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// Where a request goes in a file of `size` bytes: around its end, and to whole sectors, as direct I/O wants
/// them. Offset and bytes.
fn place(request: Request, size: u64) -> (u64, u64) {
    let bytes = request.bytes.div_ceil(SECTOR).saturating_mul(SECTOR);
    let bytes = bytes.min(size);
    let places = (size - bytes) / SECTOR + 1;
    ((request.offset / SECTOR % places) * SECTOR, bytes)
}

/// `--speed`: more than nothing, at most a million times.
pub(super) fn parse_speed(text: &str) -> Result<f64, String> {
    text.parse()
        .ok()
        .filter(|speed| (1e-6..=1e6).contains(speed))
        .ok_or_else(|| {
            format!("expected how many times as fast, such as 1 or 25.5, found {text:?}")
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn trace(ats: &[u64], speed: Option<f64>) -> Trace {
        let request = |at: &u64| Request {
            at: *at,
            write: false,
            offset: 0,
            bytes: 1,
        };
        Trace {
            requests: ats.iter().map(request).collect(),
            speed,
            taken: Mutex::default(),
        }
    }

    #[test]
    fn a_trace_begins_again_where_it_would_have_gone_on() {
        let second = 1_000_000_000;
        let timed = trace(&[0, second, 2 * second], Some(2.0));
        let dues: Vec<_> = (0..7)
            .map(|_| timed.take().unwrap().1.unwrap().as_secs_f64())
            .collect();
        assert_eq!(dues, [0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0]);
        let hurried = trace(&[0, second], None);
        assert!((0..5).all(|_| hurried.take().unwrap().1.is_none()));
        // One request, or all at the same time: no time passes between laps.
        assert!(trace(&[0], Some(1.0)).take().is_some());
    }

    #[test]
    fn a_sweep_reads_every_place_once_and_then_at_random() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        std::fs::write(&path, vec![0; 1 << 20]).unwrap();
        let step = 64 << 10;
        let job = Arc::new(Job {
            counters: Arc::default(),
            source: Source::Random {
                read_percent: 0,
                bytes: 4096,
                step,
                unswept: AtomicU64::new(0),
            },
            path,
            size: 1 << 20,
            direct: false,
            pacer: None,
            seed: 1,
            began: OnceLock::new(),
        });
        let mut worker = Worker::new(job, Arc::default(), 0).unwrap();
        let mut next = || worker.next().unwrap().0;
        let swept: Vec<_> = (0..16).map(|_| next()).collect();
        let places: Vec<u64> = swept.iter().map(|request| request.offset / step).collect();
        assert_eq!(places, (0..16).collect::<Vec<u64>>());
        assert!(swept.iter().all(|request| !request.write));
        let random: Vec<_> = (0..64).map(|_| next()).collect();
        assert!(random.iter().all(|r| r.write && r.offset % step == 0));
        assert!(random.iter().any(|r| r.offset != random[0].offset));
    }

    proptest! {
        #[test]
        fn every_request_has_a_place(offset: u64, bytes in 1..=(64u64 << 20), sectors in 2048..1_000_000u64) {
            let size = sectors * SECTOR;
            let request = Request { at: 0, write: true, offset, bytes };
            let (at, length) = place(request, size);
            prop_assert!(length > 0 && at + length <= size);
            prop_assert_eq!(at % SECTOR, 0);
            prop_assert_eq!(length % SECTOR, 0);
            if offset + bytes < size && offset % SECTOR == 0 {
                prop_assert!(at == offset || offset > size - length);
            }
        }
    }
}
