//! Lines of the log that a tenant can cause.

use crate::token_bucket::TokenBucket;
use parking_lot::Mutex;
use std::fmt;
use std::time::{Duration, Instant};

/// Lines at once: enough to see what a guest runs into.
const BURST: u32 = 10;
/// In the long run, one line in so long a time: 8,640 a day.
const EACH: Duration = Duration::from_secs(10);

/// How many lines one disk, or one listener, may cause: the first ones, then one now and then with the number of those that
/// were left out.
pub(crate) struct LogLimit(Mutex<State>);

struct State {
    lines: TokenBucket,
    left_out: u64,
}

/// Lines that were left out before one, for its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LeftOut(u64);

impl fmt::Display for LeftOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 => Ok(()),
            n => write!(f, " (after {n} lines of this kind that were left out)"),
        }
    }
}

impl Default for LogLimit {
    fn default() -> Self {
        Self(Mutex::new(State::new(Instant::now())))
    }
}

impl LogLimit {
    /// May a line be written now? It counts then.
    pub(crate) fn permit(&self) -> Option<LeftOut> {
        self.0.lock().permit(Instant::now())
    }
}

impl State {
    const fn new(now: Instant) -> Self {
        Self {
            lines: TokenBucket::new(BURST, EACH, now),
            left_out: 0,
        }
    }

    fn permit(&mut self, now: Instant) -> Option<LeftOut> {
        if self.lines.take(now) {
            return Some(LeftOut(std::mem::take(&mut self.left_out)));
        }
        self.left_out += 1;
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_lines_and_then_one_now_and_then_with_a_count() {
        let start = Instant::now();
        let mut state = State::new(start);
        let mut lines = |seconds: u64, tries: u32| -> Vec<String> {
            let now = start + Duration::from_secs(seconds);
            let permits = (0..tries).filter_map(|_| state.permit(now));
            permits.map(|left_out| left_out.to_string()).collect()
        };
        assert_eq!(lines(0, 1000), [""; 10]);
        assert_eq!(lines(9, 1000), [""; 0]);
        let [line] = &lines(10, 5)[..] else {
            panic!("expected one line")
        };
        assert!(line.contains("after 1990 lines"), "{line}");
        assert_eq!(lines(3600, 11).len(), 10);
    }
}
