//! A device that does not answer. While a read is overdue nothing else is read from it: the disks have all that it holds.

use super::transfer::Overdue;
use parking_lot::{Condvar, Mutex};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// For how long a read of the device is waited for. A busy hard disk, and an SSD that collects garbage, answer within
/// 100 ms: what takes longer is better asked of the disk. It is also far below the 30 s after which a guest's own driver
/// loses patience. Being wrong costs little, since the device serves again as soon as it has answered.
pub(super) const READ_PATIENCE: Duration = Duration::from_millis(250);

/// A device that stalls again and again is logged so often.
const LOG_INTERVAL: Duration = Duration::from_secs(60);

/// Reads that are overdue.
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

    /// Waits until a read is overdue; `false` when the store has closed.
    pub(super) fn wait(&self) -> bool {
        let mut state = self.state.lock();
        while state.since.is_none() && !state.closed {
            self.begun.wait(&mut state);
        }
        !state.closed
    }

    /// Ends [`wait`](Self::wait).
    pub(super) fn stop(&self) {
        self.state.lock().closed = true;
        self.begun.notify_all();
    }
}
