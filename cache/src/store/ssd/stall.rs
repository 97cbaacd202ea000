//! A device that does not answer. While a read is overdue nothing else is read from it: the disks have all that it holds.
//! What is written waits in memory that is bounded, and is read there.

use super::transfer::Overdue;
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// For how long a read of the device is waited for. A busy hard disk, and an SSD that collects garbage, answer within
/// 100 ms: what takes longer is better asked of the disk. It is also far below the 30 s after which a guest's own driver
/// loses patience. Being wrong costs little, since the device serves again as soon as it has answered.
pub(super) const READ_PATIENCE: Duration = Duration::from_millis(250);

/// How often it is looked whether a write takes long, and from when on.
const WRITES_LOOK: Duration = Duration::from_secs(1);

/// A device that stalls again and again is logged so often.
const LOG_INTERVAL: Duration = Duration::from_secs(60);

/// Reads that are overdue, and writes that are under way.
#[derive(Default)]
pub(super) struct Stall {
    /// As far as is known, there are some.
    is: AtomicBool,
    state: Mutex<State>,
    begun: Condvar,
}

#[derive(Default)]
struct State {
    since: Option<Instant>,
    /// How often it has stalled, and when that was logged last.
    stalls: u64,
    logged: Option<Instant>,
    overdue: Vec<Overdue>,
    /// When each of the writes began, the oldest first.
    writes: VecDeque<Instant>,
    closed: bool,
}

impl Stall {
    /// Is a read of the device overdue?
    pub(super) fn is_stalled(&self) -> bool {
        self.is.load(Ordering::SeqCst) && self.time().is_some()
    }

    /// For how long a read has been overdue.
    pub(super) fn time(&self) -> Option<Duration> {
        let mut state = self.state.lock();
        state.overdue.retain(|overdue| !overdue.has_ended());
        if state.overdue.is_empty()
            && let Some(since) = state.since.take()
        {
            self.is.store(false, Ordering::SeqCst);
            let stalled = since.elapsed();
            // Of one that was logged.
            if state.logged == Some(since) {
                tracing::warn!(
                    "the SSD store's device answers again, after {:.2} s",
                    stalled.as_secs_f64()
                );
            }
        }
        state.since.map(|since| since.elapsed())
    }

    /// A read is overdue.
    pub(super) fn begin(&self, overdue: Overdue) {
        let mut state = self.state.lock();
        state.overdue.push(overdue);
        if state.since.is_none() {
            let now = Instant::now();
            state.since = Some(now);
            state.stalls += 1;
            if state.logged.is_none_or(|at| now - at >= LOG_INTERVAL) {
                state.logged = Some(now);
                tracing::warn!(
                    "the SSD store's device has not answered a read for {} ms: until it does, disks are read instead ({} times so far)",
                    READ_PATIENCE.as_millis(),
                    state.stalls
                );
            }
        }
        self.is.store(true, Ordering::SeqCst);
        self.begun.notify_all();
    }

    /// Makes a write, whose time counts from now.
    pub(super) fn write<T>(&self, write: impl FnOnce() -> T) -> T {
        let begun = Instant::now();
        self.state.lock().writes.push_back(begun);
        let written = write();
        let writes = &mut self.state.lock().writes;
        if let Some(at) = writes.iter().position(|other| *other == begun) {
            writes.remove(at);
        }
        written
    }

    /// For how long the oldest of the writes has been under way.
    pub(super) fn write_time(&self) -> Option<Duration> {
        let state = self.state.lock();
        state.writes.front().map(Instant::elapsed)
    }

    /// Waits until a read is overdue, or a write takes long; `false` when the store has closed.
    pub(super) fn wait(&self) -> bool {
        let long = |began: &Instant| began.elapsed() >= WRITES_LOOK;
        let mut state = self.state.lock();
        while state.since.is_none() && !state.writes.front().is_some_and(long) && !state.closed {
            self.begun.wait_for(&mut state, WRITES_LOOK);
        }
        !state.closed
    }

    /// Ends [`wait`](Self::wait).
    pub(super) fn stop(&self) {
        self.state.lock().closed = true;
        self.begun.notify_all();
    }
}
